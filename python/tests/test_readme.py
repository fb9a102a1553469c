"""The code of python/README.md runs."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)


@pytest.mark.parametrize("code", BLOCKS, ids=[code.split("\n", 1)[0] for code in BLOCKS])
def test_code(code):
    if "torch" in code:
        pytest.importorskip("torch")
    names = {}
    exec(code, names)
    assert names["out"].shape[-1] == 64


def test_there_is_code():
    assert len(BLOCKS) == 2
