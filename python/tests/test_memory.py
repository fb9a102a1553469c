"""Nothing is copied: by pointers, by what a write through an array shows, and by the memory that a process takes."""

import os
import subprocess
import sys
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import fovea

PEAK = """
import resource, sys
import numpy as np
import fovea
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 8, 8192, 64), dtype=np.float32) for _ in range(3))
small = q[:, :, :64]
fovea.set_threads(2)
fovea.attention(small, small, small)            # modules, threads and their stacks
def peak():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))
def now():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS"))
with open("/proc/self/clear_refs", "w") as f:   # the peak starts over
    f.write("5")
before = now()
out = fovea.attention(q, k, v, causal="top-left")
print(peak() - before, out.nbytes)
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peak memory is measured as Linux has it")
def test_peak_memory_of_a_call():
    """1,8,8192,64: no more than the output and 4 MiB beside the inputs, which are there already."""
    run = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, env=os.environ)
    assert run.returncode == 0, run.stderr
    grown, output = map(int, run.stdout.split())
    assert output == 8 * 8192 * 64 * 4
    assert grown <= output + (4 << 20)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_no_array_is_made(dtype):
    """NumPy's allocations are traced: with `out` given there are none of a tensor's size."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 256, 4, 64), dtype=np.float32).astype(dtype).transpose(0, 2, 1, 3)[:, :, ::-1] for _ in range(3))
    out = np.empty_like(q)
    fovea.attention(q, k, v, out=out)
    tracemalloc.start()
    fovea.attention(q, k, v, out=out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8192 < q.nbytes


def test_references_do_not_leak():
    q, k, v = (np.zeros((1, 1, 4, 8), np.float32) for _ in range(3))
    mask = np.ones((4, 4), bool)
    keywords = {"mask": mask, "out": np.empty_like(q)}
    objects = [q, k, v, *keywords.values()]
    fovea.attention(q, k, v, **keywords)
    counts = [sys.getrefcount(x) for x in objects]
    for _ in range(100):
        fovea.attention(q, k, v, **keywords)
        with pytest.raises(ValueError):
            fovea.attention(q, k, v, softcap=-1.0, **keywords)
    plan = fovea.Plan(q, k, v, **keywords)
    for _ in range(100):
        plan.run(q, k, v)
    del plan
    assert [sys.getrefcount(x) for x in objects] == counts
    q.resize((1, 1, 4, 8))  # NumPy refuses this while a buffer is exported


def test_arrays_are_read_and_written_in_place():
    v = np.zeros((1, 1, 3, 4), np.float32)
    q = k = np.zeros((1, 1, 3, 4), np.float32)
    plan = fovea.Plan(q, k, v)
    assert (plan.run(q, k, v) == 0).all()
    v[...] = 5
    out = np.empty_like(v)
    assert plan.run(q, k, v, out=out) is out
    assert (out == 5).all()
