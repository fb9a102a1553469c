"""The check before timing accepts attention in the type that is claimed, and refuses what a wrong kernel computes."""

import checks
import numpy as np
import pytest
import tensors
import workloads

SHAPES = ["2,4/2,17x33,24", "1,2,40,16,8,causal", "1,2,9x30,16+padmask+softcap+alibi", "1,2,30,16+distbias+sinks", "1,2,8x64,16+window=5+keybias"]


def attention(t, dtype):
    """Of the whole tensors, with weights and scores rounded to a type."""
    w = t.workload
    q, k, v = (np.repeat(a.astype(np.float32), g, axis=1) for a, g in ((t.q, 1), (t.caches[0][0], w.group), (t.caches[0][1], w.group)))
    round_to = lambda a: a.astype(tensors.DTYPES[dtype]).astype(np.float32)
    s = round_to(q @ k.transpose(0, 1, 3, 2) * np.float32(w.scale))
    if w.softcap:
        s = w.softcap * np.tanh(s / w.softcap)
    bias = t.total_bias()
    s = s if bias is None else s + bias
    visible = t.visibility(causal_too=True)
    s = s if visible is None else np.where(visible, s, -np.inf)
    sinks = t.sinks[None, :, None, None] if w.sinks else np.full((1, 1, 1, 1), -np.inf)
    most = np.maximum(s.max(-1, keepdims=True), sinks)
    p = np.exp(s - most)
    return round_to(round_to(p / (p.sum(-1, keepdims=True) + np.exp(sinks - most))) @ v)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_right_results_pass(shape, dtype):
    t = tensors.Tensors(workloads.parse(shape), dtype)
    found = checks.check(t, attention(t, dtype), dtype)
    assert found["share_of_tolerance"] <= 1


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_key_too_few_is_refused(shape, dtype):
    """Nobody sees the last visible key of the last row; the sampled rows include that row."""
    t = tensors.Tensors(workloads.parse(shape), dtype)
    out = attention(t, dtype)
    last = int(np.flatnonzero(t.workload.visible(t.workload.Tq - 1))[-1])
    t.caches[0][0][:, :, last] *= -3
    t.caches[0][1][:, :, last] += 3
    with pytest.raises(checks.WrongResult):
        checks.check(t, out, dtype)


def test_bf16_does_not_pass_for_f32():
    t = tensors.Tensors(workloads.parse("1,2,64,32"), "f32")
    with pytest.raises(checks.WrongResult):
        checks.check(t, attention(t, "bf16"), "f32")


def test_nan_is_refused():
    t = tensors.Tensors(workloads.parse("1,1,4,8"), "f32")
    with pytest.raises(checks.WrongResult):
        checks.check(t, np.full((1, 1, 4, 8), np.nan, np.float32), "f32")
