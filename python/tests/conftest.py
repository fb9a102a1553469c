import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # textbook.py

try:
    from hypothesis import settings

    settings.register_profile("fovea", database=None)  # nothing is left behind in the working tree
    settings.load_profile("fovea")
except ImportError:
    pass
