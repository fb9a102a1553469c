"""Structured tensors: exact scores, and errors that show what one long sum loses."""

import numpy as np
import precision
import pytest


def attention(t, add):
    """In f32, the sums over keys by `add`."""
    k, v = (array[0, 0].astype(np.float32) for array in t.caches[0])
    scores = k @ t.q[0, 0, 0].astype(np.float32) * np.float32(t.workload.scale)
    p = np.exp(scores - scores.max())
    out = add(p[:, None] * v) / add(p[:, None])
    return np.broadcast_to(out, (1, 1, precision.QUERIES, precision.CHANNELS))


def one_by_one(terms):
    return np.cumsum(terms, axis=0, dtype=np.float32)[-1]


@pytest.mark.parametrize("pattern", precision.PATTERNS)
def test_one_long_sum_is_seen_and_exact_sums_pass(pattern):
    t = precision.Structured(pattern, 1 << 16, "f32", 1)
    assert t.error(attention(t, one_by_one)) > 1e-5
    assert t.error(attention(t, lambda terms: terms.sum(axis=0, dtype=np.float64))) < 5e-7


def test_scores_are_exact():
    t = precision.Structured("dominant", 1024, "f32", 1)
    k = t.caches[0][0][0, 0]
    assert np.array_equal(k @ t.q[0, 0, 0] * np.float32(t.workload.scale), k.sum(axis=1))


def test_the_largest_error_of_the_seeds_counts():
    lines = [{"kind": "precision", "peer": "ggml", "dtype": "f32", "pattern": "equal", "Tk": keys, "computed": "f32", "errors": errors} for keys, errors in ((1024, [1e-6, 3e-6]), (2048, [2e-6]))]
    assert precision.Results(lines).curve("f32", "equal", "ggml") == {1024: 3e-6, 2048: 2e-6}
    text = precision.markdown([*lines, {"kind": "skip", "peer": "openvino", "reason": "is not installed"}])
    assert "| 1K | 3.0e-06 |" in text
    assert "- openvino: is not installed" in text
