"""attention() against float64, whatever the type, the options and the strides."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fovea
import textbook

TYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def random(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)


def close(got, expected, tolerance):
    assert np.shape(got) == np.shape(expected)
    worst = float(np.max(np.abs(np.asarray(got).astype(np.float64) - expected), initial=0))
    assert worst <= tolerance


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
def test_types_and_layouts(dtype, layout):
    rng = np.random.default_rng(1)
    q, k, v = random(rng, 2, 6, 37, 24, dtype=dtype), random(rng, 2, 2, 51, 24, dtype=dtype), random(rng, 2, 2, 51, 16, dtype=dtype)
    expected, lse, weights = textbook.attention(q, k, v, causal="bottom-right")
    if layout == "BTHD":
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        expected = expected.transpose(0, 2, 1, 3)
    out, got_lse, got_weights = fovea.attention(q, k, v, causal="bottom-right", layout=layout, return_lse=True, return_weights=True)
    assert out.dtype == dtype and out.flags.c_contiguous
    other = fovea.attention(q, k, v, causal="bottom-right", layout=layout, out_layout="BTHD" if layout == "BHTD" else "BHTD")
    assert other.flags.c_contiguous and np.array_equal(other.transpose(0, 2, 1, 3), out)
    close(out, expected, textbook.tolerance(dtype, v))
    close(got_lse, lse, 1e-4)
    close(got_weights, weights, 1e-5)


options = st.fixed_dictionaries(
    {},
    optional={
        "scale": st.sampled_from([0.0, -0.5, 0.3]),
        "causal": st.sampled_from(["top-left", "bottom-right"]),
        "window": st.tuples(st.integers(-1, 20), st.integers(-1, 20)),
        "query_offset": st.integers(-5, 30),
        "softcap": st.sampled_from([1.0, 20.0]),
        "bias": st.sampled_from([(1, 1, 1, 1), (1, 0, 1, 1), (0, 0, 0, 0), (1, 1, 1, 0)]),
        "mask": st.sampled_from([(1, 1, 1, 1), (1, 0, 1, 1), (0, 0, 0, 0), (0, 1, 1, 0)]),
        "sinks": st.just(True),
        "alibi_slopes": st.just(True),
        "head_scales": st.just(True),
        "bias_scales": st.just(True),
        "key_ranges": st.sampled_from([np.int32, np.int64]),
        "q_lengths": st.just(True),
        "kv_lengths": st.just(True),
    },
)


@settings(max_examples=150, deadline=None)
@given(options=options, seed=st.integers(0, 2**31), sizes=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 40), st.integers(0, 70)))
def test_options(options, seed, sizes):
    rng = np.random.default_rng(seed)
    B, Hkv, group, Tq, Tk = sizes
    q, k, v = random(rng, B, Hkv * group, Tq, 8), random(rng, B, Hkv, Tk, 8), random(rng, B, Hkv, Tk, 5)
    full = (B, Hkv * group, Tq, Tk)
    keywords = dict(options)
    # A true axis has the full size, a false one is broadcast.
    for name in ("bias", "mask"):
        if name in options:
            shape = tuple(n if axis else 1 for n, axis in zip(full, options[name]))
            values = random(rng, *shape)
            keywords[name] = values if name == "bias" else values > -0.5
    if "sinks" in options:
        keywords["sinks"] = random(rng, Hkv * group)
    for name in ("head_scales", "bias_scales"):
        if name in options:
            keywords[name] = random(rng, Hkv * group)
    if "key_ranges" in options:
        first = rng.integers(-3, Tk + 1, (1 if seed % 2 else B, Tq, 1))
        keywords["key_ranges"] = np.concatenate([first, first + rng.integers(-2, Tk + 3, first.shape)], axis=2).astype(options["key_ranges"])
    if "alibi_slopes" in options:
        keywords["alibi_slopes"] = fovea.alibi_slopes(Hkv * group)
    if "q_lengths" in options:
        keywords["q_lengths"] = rng.integers(0, Tq + 1, B).astype(np.int32)
    if "kv_lengths" in options:
        keywords["kv_lengths"] = rng.integers(0, Tk + 1, B)
    expected, lse, weights = textbook.attention(q, k, v, **keywords)
    out, got_lse, got_weights = fovea.attention(q, k, v, return_lse=True, return_weights=True, **keywords)
    close(out, expected, textbook.tolerance(np.float32, v, largest=60))
    close(got_weights, weights, 1e-4)
    empty = np.isneginf(lse)
    assert np.array_equal(np.isneginf(got_lse), empty)
    close(np.where(empty, 0, got_lse), np.where(empty, 0, lse), 1e-3)


def test_without_a_batch_axis():
    rng = np.random.default_rng(2)
    q, k, v = random(rng, 4, 9, 8), random(rng, 2, 9, 8), random(rng, 2, 9, 8)
    expected, lse, weights = textbook.attention(q[None], k[None], v[None])
    out, got_lse, got_weights = fovea.attention(q, k, v, return_lse=True, return_weights=True)
    close(out, expected[0], textbook.tolerance(np.float32, v))
    close(got_lse, lse[0], 1e-5)
    close(got_weights, weights[0], 1e-5)
    by_token = [x.transpose(1, 0, 2) for x in (q, k, v)]
    close(fovea.attention(*by_token, layout="BTHD"), expected[0].transpose(1, 0, 2), textbook.tolerance(np.float32, v))


def test_packed_sequences():
    rng = np.random.default_rng(3)
    lengths = [5, 0, 17, 9]
    rows = sum(lengths)
    starts = np.cumsum([0, *lengths])
    q, k, v = (random(rng, rows, heads, 8) for heads in (4, 2, 2))  # [rows, H, d]
    out, lse, weights = fovea.attention(q, k, v, cu_seqlens_q=starts, cu_seqlens_k=list(map(int, starts)), causal=True, layout="BTHD", return_lse=True,
                                        return_weights=True)
    assert weights.shape == (4, 4, 17, 17)
    for b, (first, last) in enumerate(zip(starts, starts[1:])):
        one = [x[first:last].transpose(1, 0, 2)[None] for x in (q, k, v)]
        expected, expected_lse, expected_weights = textbook.attention(*one, causal="bottom-right")
        close(out[first:last].transpose(1, 0, 2)[None], expected, textbook.tolerance(np.float32, v))
        close(lse[:, first:last][None], expected_lse, 1e-5)
        n = last - first
        close(weights[b, :, :n, :n][None], expected_weights, 1e-5)


@pytest.mark.parametrize("Tk", [1, 8, 13, 64])
def test_masks_of_bits(Tk):
    rng = np.random.default_rng(4)
    q, k, v = random(rng, 1, 2, 11, 8), random(rng, 1, 2, Tk, 8), random(rng, 1, 2, Tk, 8)
    mask = rng.random((2, 11, Tk)) > 0.4
    bits = np.packbits(mask, axis=-1, bitorder="little")
    expected = fovea.attention(q, k, v, mask=mask)
    assert np.array_equal(fovea.attention(q, k, v, mask_bits=bits), expected)
    assert np.array_equal(fovea.attention(q, k, v, mask_bits=bits, mask_shape=(2, 11, Tk)), expected)


def test_block_map_and_parents():
    rng = np.random.default_rng(5)
    q, k, v = (random(rng, 1, 2, 32, 8) for _ in range(3))
    visible = rng.random((1, 2, 4, 2)) > 0.5
    mask = visible.repeat(8, axis=2).repeat(16, axis=3)
    expected = textbook.attention(q, k, v, mask=mask)[0]
    close(fovea.attention(q, k, v, block_map=(visible, 8, 16)), expected, textbook.tolerance(np.float32, v))

    parents = np.array([[-1, 0, 0, 1, 1, 2]], dtype=np.int64)
    q = q[:, :, :6]
    sees = np.zeros((6, 32), dtype=bool)
    sees[:, :20] = True
    for i in range(6):
        node = i
        while node >= 0:
            sees[i, 20 + node] = True
            node = parents[0, node]
    expected = textbook.attention(q, k, v, mask=sees)[0]
    close(fovea.attention(q, k, v, parents=parents, query_offset=20), expected, textbook.tolerance(np.float32, v))


def test_scales_are_lists_too():
    rng = np.random.default_rng(12)
    q, k, v, bias = random(rng, 1, 4, 9, 8), random(rng, 1, 2, 20, 8), random(rng, 1, 2, 20, 8), random(rng, 9, 20)
    keywords = {"bias": bias, "head_scales": [1.0, 0.5, -2.0, 0], "bias_scales": (0.25, -1.0, 0, 1)}
    close(fovea.attention(q, k, v, **keywords), textbook.attention(q, k, v, **keywords)[0], textbook.tolerance(np.float32, v))


def test_documents_are_key_ranges():
    rng = np.random.default_rng(13)
    q, k, v = (random(rng, 2, 2, 30, 8) for _ in range(3))
    starts = np.array([0, 7, 19, 30])
    document = np.searchsorted(starts, np.arange(30), side="right") - 1
    ranges = np.stack([starts[document], starts[document + 1]], axis=1)[None]
    expected = textbook.attention(q, k, v, mask=document[:, None] == document)[0]
    close(fovea.attention(q, k, v, key_ranges=ranges), expected, textbook.tolerance(np.float32, v))
    close(fovea.attention(q[0], k[0], v[0], key_ranges=ranges.astype(np.int32)), expected[0], textbook.tolerance(np.float32, v))
    plan = fovea.Plan(q, k, v, key_ranges=ranges)
    close(plan.run(q, k, v), expected, textbook.tolerance(np.float32, v))
    everything = np.broadcast_to(np.array([0, 30]), (2, 30, 2))
    close(plan.run(q, k, v, key_ranges=everything), textbook.attention(q, k, v)[0], textbook.tolerance(np.float32, v))
    with pytest.raises(ValueError, match="key_ranges"):
        plan.run(q, k, v, key_ranges=None)


def test_scores_at_each_stage():
    rng = np.random.default_rng(6)
    q, k, v = (random(rng, 1, 2, 12, 8) for _ in range(3))
    scaled = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) / np.sqrt(8)
    capped = 3 * np.tanh(scaled / 3)
    masked = np.where(np.tri(12, dtype=bool), capped, -np.inf)
    weights = np.exp(masked) / np.exp(masked).sum(axis=-1, keepdims=True)
    for stage, expected in {"scaled": scaled, "softcapped": capped, "masked": masked, "weights": weights}.items():
        out, scores = fovea.attention(q, k, v, causal="top-left", softcap=3, return_scores=True, score_stage=stage)
        assert np.allclose(scores, expected, rtol=1e-5, atol=1e-5), stage


def strided(rng, shape, how, dtype=np.float32):
    B, H, T, d = shape
    if how == "transposed":
        return random(rng, B, T, H, d, dtype=dtype).transpose(0, 2, 1, 3)
    if how == "negative":
        return random(rng, *shape, dtype=dtype)[:, ::-1, ::-1, ::-1]
    if how == "broadcast":
        return np.broadcast_to(random(rng, 1, 1, T, d, dtype=dtype), shape)
    if how == "inner":
        return random(rng, B, H, T, 3 * d, dtype=dtype)[..., ::3]
    return random(rng, B, H, d, T, dtype=dtype).swapaxes(2, 3)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("how", ["transposed", "negative", "broadcast", "inner", "columns"])
def test_any_strides(dtype, how):
    rng = np.random.default_rng(7)
    q, k, v = strided(rng, (2, 4, 19, 16), how, dtype), strided(rng, (2, 2, 33, 16), how, dtype), strided(rng, (2, 2, 33, 16), how, dtype)
    out = np.empty((2, 19, 4, 16), dtype=dtype).transpose(0, 2, 1, 3)
    assert fovea.attention(q, k, v, out=out) is out
    dense = [np.ascontiguousarray(x) for x in (q, k, v)]
    close(out, textbook.attention(*dense)[0], textbook.tolerance(dtype, v))


def test_other_arrays():
    rng = np.random.default_rng(8)
    q, k, v = (random(rng, 1, 2, 5, 8) for _ in range(3))
    expected = fovea.attention(q, k, v)

    class OnlyDLPack:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **keywords):
            return self.array.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    assert np.array_equal(fovea.attention(memoryview(q), memoryview(k), v), expected)
    assert np.array_equal(fovea.attention(OnlyDLPack(q), OnlyDLPack(k), OnlyDLPack(v)), expected)
    out = np.empty_like(q)
    target = OnlyDLPack(out)
    assert fovea.attention(q, k, v, out=target) is target
    assert np.array_equal(out, expected)


def test_plan():
    rng = np.random.default_rng(9)
    q, k, v = random(rng, 1, 4, 3, 16), random(rng, 1, 2, 40, 16), random(rng, 1, 2, 40, 16)
    plan = fovea.Plan(q, k, v, causal="bottom-right", kv_lengths=[20], max_keys=40, return_lse=True)
    assert "sequence 0" in str(plan) and plan.engine in ("row", "tile") and plan.isa in fovea.targets()
    assert plan.pairs == 4 * (18 + 19 + 20)
    for length in (20, 31, 40):
        plan.update(q, k, v, kv_lengths=np.array([length]))
        out, lse = plan.run(q, k, v)
        expected, expected_lse, _ = textbook.attention(q, k, v, causal="bottom-right", kv_lengths=[length])
        close(out, expected, textbook.tolerance(np.float32, v))
        close(lse, expected_lse, 1e-5)
    out = np.empty_like(q)
    assert plan.run(q, k, v, out=out, scale=0.5)[0] is out
    close(out, textbook.attention(q, k, v, causal="bottom-right", scale=0.5)[0], textbook.tolerance(np.float32, v))
    with pytest.raises(ValueError):
        plan.run(q, k, v, causal="top-left")  # a plan binds it
    with pytest.raises(ValueError):
        plan.run(q[:, :, :2], k, v)
    with pytest.raises(TypeError, match="engine"):
        plan.run(q, k, v, engine="row")


def test_merge_of_key_sets():
    rng = np.random.default_rng(10)
    q, k, v = random(rng, 2, 4, 7, 8), random(rng, 2, 2, 50, 8), random(rng, 2, 2, 50, 8)
    parts = [fovea.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in ((0, 13), (13, 13), (13, 50))]
    out, lse = fovea.merge(parts)
    expected, expected_lse, _ = textbook.attention(q, k, v)
    close(out, expected, textbook.tolerance(np.float32, v))
    close(lse, expected_lse, 1e-5)
    out_3d, lse_3d = fovea.merge([(o[0], l[0]) for o, l in parts])
    assert np.array_equal(out_3d, out[0]) and np.array_equal(lse_3d, lse[0])
    with pytest.raises(ValueError):
        fovea.merge([])
    with pytest.raises(TypeError):
        fovea.merge([parts[0][0]])


def test_targets_agree():
    rng = np.random.default_rng(11)
    q, k, v = (random(rng, 1, 2, 33, 16) for _ in range(3))
    expected = textbook.attention(q, k, v)[0]
    assert fovea.active_target() in fovea.targets() and set(fovea.targets()) <= set(fovea.compiled_targets())
    for isa in fovea.targets():
        for engine in ("tile", "row"):
            close(fovea.attention(q, k, v, isa=isa, engine=engine), expected, textbook.tolerance(np.float32, v))


def test_alibi_slopes():
    assert np.allclose(fovea.alibi_slopes(8), 2.0 ** -np.arange(1, 9))
    with pytest.raises(ValueError):
        fovea.alibi_slopes(-1)
