import importlib
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # textbook.py

# Tests of packages that are missing are skipped, but of those that must be there.
for name in filter(None, os.environ.get("FOVEA_REQUIRED_PACKAGES", "").split(",")):
    importlib.import_module(name)

try:
    from hypothesis import settings

    settings.register_profile("fovea", database=None)  # nothing is left behind in the working tree
    settings.load_profile("fovea")
except ImportError:
    pass


@pytest.fixture
def calls():
    """The element types of query, for each call of PyTorch's dispatcher that Fovea computes."""
    from fovea import _operator

    seen = []
    _operator.observe(lambda query, *_: seen.append(query.dtype))
    yield seen
    _operator.observe(None)
