"""examples/tour runs, all that it asserts holds, and docs/tour.md is what it renders."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def same_everywhere(page):
    return [line for line in page.splitlines() if not line.startswith("here: ")]


def test_tour_is_current(tmp_path):
    pytest.importorskip("matplotlib")
    run = subprocess.run([sys.executable, str(ROOT / "examples/tour"), "--out", str(tmp_path)], capture_output=True, text=True, encoding="utf-8",
                         env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    assert run.returncode == 0, run.stderr
    rendered, kept = ((folder / "tour.md").read_text(encoding="utf-8") for folder in (tmp_path, ROOT / "docs"))
    assert same_everywhere(rendered) == same_everywhere(kept), "run examples/tour"

    pictures = set(re.findall(r"\]\((tour/.*?\.png)\)", kept))
    assert len(pictures) == kept.count("\n## ")
    for folder in (tmp_path, ROOT / "docs"):
        assert {f"tour/{path.name}" for path in (folder / "tour").iterdir()} == pictures
        assert all(0 < (folder / picture).stat().st_size <= 60_000 for picture in pictures)
