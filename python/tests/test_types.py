"""mypy --strict of a program that uses the package: it finds fault with the lines that end in `# refused`, and with no other."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fovea

pytest.importorskip("mypy")

ARRAYS = """
from typing import Any

import numpy as np
import numpy.typing as npt

import ctypes

import fovea

Array = npt.NDArray[np.float32]
q: Array = np.zeros((1, 2, 4, 8), np.float32)
out: Array = fovea.attention(q, q, q)
text: str = fovea.attention(q, q, q)  # refused
out = fovea.attention(q, q, q, causal="top-left", window=(3, None), scale=0.5, kv_lengths=[4], threads=2, isa="avx2", out=q.copy())
out = fovea.attention(q, q, q, causal=True, query_offset=np.array([1]), bias=q, mask=None, block_map=(q, 8, 8), sinks=(0.0, 1.0))
out = fovea.attention(q, q, q, head_scales=[1.0, 2.0], bias_scales=q, key_ranges=np.zeros((1, 4, 2), np.int32), score_function=4096)
out = fovea.attention(q, q, q, query_offset=np.int64(3), window=(np.int32(3), None), scale=np.float32(0.5), threads=np.array(2), return_lse=np.False_)
fovea.attention(q, q, q, scale="0.5")  # refused


class Compiled:
    address = 4096


def change(context: int | None, block: "ctypes._Pointer[fovea.ScoreBlock]") -> None:
    block.contents.scores[0] = float(block.contents.heads[0] + block.contents.rows)


function = fovea.score_function_type(change)
out = fovea.attention(q, q, q, score_function=function)
out = fovea.attention(q, q, q, score_function=(Compiled(), ctypes.c_int(1)))
out = fovea.attention(q, q, q, score_function=(function, q))
fovea.attention(q, q, q, score_function=lambda context, block: None)  # refused
fovea.attention(q, q, q, score_function=(function, "context"))  # refused
pair: tuple[Array, Any] = fovea.attention(q, q, q, return_lse=True)
text = fovea.attention(q, q, q, return_lse=True)  # refused
out, lse, weights = fovea.attention(q, q, q, return_lse=True, return_weights=True)
out, lse = fovea.attention(q, q, q, lse=np.zeros((1, 2, 4), np.float32))
out = fovea.attention(memoryview(b""), memoryview(b""), q)
fovea.attention(1, q, q)  # refused
fovea.attention(q, q)  # refused
fovea.attention(q, q, q, masks=None)  # refused
fovea.attention(q, q, q, causal="yes")  # refused
fovea.attention(q, q, q, window=3)  # refused
fovea.attention(q, q, q, fixed_mask=True)  # refused
fovea.attention(q, q, q, bias=[0.0])  # refused

plan = fovea.Plan(q, q, q, causal="top-left", engine="row", max_keys=8, fixed_mask=True, return_lse=True)
fovea.Plan(q, q, q, engine="rows")  # refused
plan.update(q, q, q, kv_lengths=[3])
out, lse = plan.run(q, q, q, scale=2)
plan.run(q, q, q, engine="row")  # refused
lines: list[str] = [str(plan), plan.isa, plan.engine, plan.product]
numbers: list[float] = [plan.flops, plan.pairs, plan.kv_bytes, plan.tasks, plan.workspace_bytes(2)]
plan.flops = 1.0  # refused

out, lse = fovea.merge([(out, lse), [out, lse]], out=out)
fovea.merge([out])  # refused
slopes: Array = fovea.alibi_slopes(8)
lines = fovea.targets() + fovea.compiled_targets() + [fovea.active_target(), fovea.__version__]
fovea.set_threads(fovea.get_threads())
fovea.set_threads("two")  # refused
try:
    fovea.attention(q, q, q)
except fovea.UnsupportedError as error:
    caught: ValueError = error
"""

TENSORS = """
import warnings

import torch

import fovea
import fovea.torch

q = torch.zeros(1, 2, 4, 8)
out: torch.Tensor = fovea.attention(q, q, q, causal="bottom-right")
text: str = fovea.attention(q, q, q, causal="bottom-right")  # refused
out, lse = fovea.attention(q, q, q, lse=torch.zeros(1, 2, 4))
with fovea.torch.patch():
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
with fovea.torch.patch("all"):  # refused
    pass
out = fovea.torch.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3, enable_gqa=True)
text = fovea.torch.scaled_dot_product_attention(q, q, q)  # refused
warnings.simplefilter("error", fovea.torch.FallbackWarning)
"""


def check(program, folder):
    try:
        installed = Path(str(importlib.metadata.distribution("fovea").locate_file("fovea")))
    except importlib.metadata.PackageNotFoundError:
        installed = None
    if Path(fovea.__file__).parent != installed:
        pytest.skip("mypy looks at installed packages, and this one is not installed")
    (folder / "program.py").write_text(program, encoding="utf-8")
    run = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "program.py"], cwd=folder, capture_output=True,
                         text=True, encoding="utf-8")
    found = {int(line) for line in re.findall(r"^program\.py:(\d+): error", run.stdout, re.M)}
    marked = {number for number, line in enumerate(program.splitlines(), 1) if line.endswith("# refused")}
    assert marked and found == marked, run.stdout + run.stderr


def test_arrays(tmp_path):
    check(ARRAYS, tmp_path)


def test_tensors(tmp_path):
    pytest.importorskip("torch")
    check(TENSORS, tmp_path)
