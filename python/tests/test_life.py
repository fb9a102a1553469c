"""Objects that travel, and the module's life: copies and pickles of plans, the end of the interpreter, loading anew, interpreters within it."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import fovea

rng = np.random.default_rng(0)
q = rng.standard_normal((2, 4, 6, 16), dtype=np.float32)
k, v = (rng.standard_normal((2, 2, 9, 16), dtype=np.float32) for _ in range(2))


def copies(plan):
    return [copy.copy(plan), copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))]


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"causal": "top-left", "window": (3, None), "query_offset": np.int64(2), "softcap": 2.0, "return_lse": True},
        {"mask": np.tri(6, 9, 3, dtype=bool), "fixed_mask": True, "kv_lengths": [9, 4], "engine": "row"},
        {"bias": rng.standard_normal((6, 9), dtype=np.float32), "sinks": [0.0] * 4, "isa": fovea.active_target(), "threads": 2},
    ],
    ids=["plain", "numbers", "mask", "arrays"],
)
def test_copies_of_plans_compute_the_same(keywords):
    plan = fovea.Plan(q, k, v, **keywords)
    expected = plan.run(q, k, v)
    for other in copies(plan):
        assert str(other) == str(plan)
        got = other.run(q, k, v)
        for e, g in zip(expected if isinstance(expected, tuple) else [expected], got if isinstance(got, tuple) else [got]):
            assert np.array_equal(e, g)


def test_copies_of_updated_plans():
    plan = fovea.Plan(q, k, v, kv_lengths=[5, 5], max_keys=20)
    plan.update(q, k, v, kv_lengths=[6, 7])
    longer = np.concatenate([k, k], axis=2)
    for other in copies(plan):
        assert np.array_equal(other.run(q, k, v), plan.run(q, k, v))
        other.update(q, longer, longer, kv_lengths=[18, 3])  # which the first one may too
        with pytest.raises(ValueError, match="27, expected at most 20"):
            other.update(q, *(np.concatenate([longer, k], axis=2),) * 2, kv_lengths=[18, 3])


def test_copies_of_plans_of_other_layouts_and_types():
    by_token = [x.swapaxes(1, 2) for x in (q, k, v)]
    plan = fovea.Plan(*by_token, layout="BTHD")
    for other in copies(plan):
        assert np.array_equal(other.run(*by_token), plan.run(*by_token))
    plan = fovea.Plan(q[0], k[0], v[0])
    for other in copies(plan):
        assert np.array_equal(other.run(q[0], k[0], v[0]), plan.run(q[0], k[0], v[0]))
    ml_dtypes = pytest.importorskip("ml_dtypes")
    small = [x.astype(t) for x, t in ((q, np.float16), (k, ml_dtypes.bfloat16), (v, np.float16))]
    for other in copies(fovea.Plan(*small)):
        assert np.array_equal(other.run(*small), fovea.attention(*small))


def test_plans_with_functions_do_not_travel():
    plan = fovea.Plan(q, k, v, score_function=4096)
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="score_function"):
            way(plan)


def run(program, *arguments):
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120)


PROBLEM = """
import sys, threading, time
import numpy as np
import fovea
q = np.zeros((2, 8, 1024, 64), np.float32)
"""


def test_the_interpreter_ends_while_threads_park():
    program = PROBLEM + "fovea.attention(q, q, q, threads=4)\nplan = fovea.Plan(q, q, q, threads=4)\nplan.run(q, q, q)\nprint('done')"
    ended = run(program)
    assert ended.returncode == 0 and ended.stdout == "done\n" and not ended.stderr


def test_the_interpreter_ends_while_a_call_runs():
    program = PROBLEM + """
def forever():
    while True:
        fovea.attention(q, q, q, threads=2)
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.3)
"""
    ended = run(program)
    assert ended.returncode == 0 and not ended.stderr


def test_loaded_anew():
    program = PROBLEM + """
import importlib, copy, pickle
expected = fovea.attention(q, q, q, threads=3)
importlib.reload(fovea)
assert np.array_equal(fovea.attention(q, q, q, threads=3), expected)
for name in [name for name in sys.modules if name.startswith("fovea")]:
    del sys.modules[name]
import fovea as anew
assert np.array_equal(anew.attention(q, q, q, threads=3), expected)
try:
    anew.attention(q, q, q, scale="")
except TypeError:
    pass
print("done")
"""
    ended = run(program)
    assert ended.returncode == 0 and ended.stdout == "done\n", ended.stderr


def test_the_operator_loaded_anew():
    pytest.importorskip("torch")
    program = """
import importlib, sys, torch
import fovea.torch, fovea._operator
q = torch.randn(1, 2, 5, 8)
expected = fovea.torch.scaled_dot_product_attention(q, q, q)
importlib.reload(fovea._operator), importlib.reload(fovea.torch)
assert torch.equal(fovea.torch.scaled_dot_product_attention(q, q, q), expected)
with fovea.torch.patch():
    assert torch.equal(torch.nn.functional.scaled_dot_product_attention(q, q, q), expected)
print("done")
"""
    ended = run(program)
    assert ended.returncode == 0 and ended.stdout == "done\n", ended.stderr


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the module of interpreters has another name")
def test_interpreters_within_the_interpreter():
    """Refused, as an import that fails, or it works; it does not crash."""
    program = """
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
import fovea
inner = interpreters.create()
failed = None
try:
    failed = interpreters.run_string(inner, "import fovea._core")
except Exception as error:
    failed = error
if failed is not None:
    assert "ImportError" in str(failed) or "subinterpreter" in str(failed), failed
interpreters.destroy(inner)
print("done")
"""
    ended = run(program)
    assert ended.returncode == 0 and ended.stdout == "done\n", ended.stderr
