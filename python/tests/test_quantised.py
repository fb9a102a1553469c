"""Quantised keys and values: what an array means, and the numbers that come of it."""

import copy
import pickle

import numpy as np
import pytest

import fovea

B, H, T, D = 2, 2, 40, 64
RNG = np.random.default_rng(1)
Q = RNG.standard_normal((B, 4, 3, D), dtype=np.float32)


def codes(dtype, channels=D):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, (B, H, T, channels), dtype=dtype)


def positive(*shape):
    return (0.01 + 0.01 * RNG.random(shape)).astype(np.float32)


def close(got, k, v, **keywords):
    want = fovea.attention(Q, np.asarray(k, np.float32), np.asarray(v, np.float32), **keywords)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(v).max())


def test_bytes():
    k, v = codes(np.int8), codes(np.uint8)
    ks, vs, vz = positive(1, H, 1, D), positive(B, H, T, 4), RNG.random((B, H, T, 4), np.float32) * 200
    got = fovea.attention(Q, k, v, k_scale=ks, v_scale=vs, v_zero=vz)
    close(got, k * ks, (v - vz.repeat(16, 3)) * vs.repeat(16, 3))


def test_layout_and_three_axes():
    k, s = codes(np.int8), positive(B, H, T, 1)
    want = fovea.attention(Q, k, k, k_scale=s, v_scale=s)
    swap = lambda x: np.ascontiguousarray(x.swapaxes(1, 2))  # noqa: E731
    got = fovea.attention(swap(Q), swap(k), swap(k), k_scale=swap(s), v_scale=swap(s), layout="BTHD")
    np.testing.assert_array_equal(swap(got), want)
    got = fovea.attention(Q[0], k[0], k[0], k_scale=s[0], v_scale=s[0])
    np.testing.assert_array_equal(got, want[0])


@pytest.mark.parametrize("kind", ["i4", "u4", "i4_high", "u4_high"])
def test_nibbles(kind):
    bytes_, s = codes(np.uint8, D // 2), positive(B, H, 1, 1)
    low, high = bytes_ & 15, bytes_ >> 4
    pair = (high, low) if kind.endswith("high") else (low, high)
    x = (np.stack(pair, -1).reshape(B, H, T, D).astype(np.float32) - (8 if kind[0] == "i" else 0)) * s
    k = fovea.quantised(bytes_, kind)
    close(fovea.attention(Q, k, k, k_scale=s, v_scale=s), x, x)


def test_blocks():
    n, d = codes(np.int8), positive(B, H, T, D // 32).astype(np.float16)
    blocks = np.empty((B, H, T, D // 32, 34), np.uint8)
    blocks[..., :2] = d[..., None].view(np.uint8)
    blocks[..., 2:] = n.reshape(B, H, T, D // 32, 32).view(np.uint8)
    k = fovea.quantised(blocks.reshape(B, H, T, -1), "q8_0")
    x = n * d.astype(np.float32).repeat(32, 3)
    close(fovea.attention(Q, k, x), x, x)
    plan = fovea.Plan(Q, k, k)
    close(plan.run(Q, k, k), x, x)
    assert "q8_0" in str(plan) and k.type == "q8_0"


def test_plans_travel():
    k, v = codes(np.int8), fovea.quantised(codes(np.uint8, D // 32 * 18), "iq4_nl")
    s = fovea.quantised(positive(1, 1, 1, 1), "f32_z4")
    for layout in ("BHTD", "BTHD"):
        plan = fovea.Plan(Q if layout == "BHTD" else Q.swapaxes(1, 2), *(
            x if layout == "BHTD" else fovea.quantised(x.array.swapaxes(1, 2), x.type) for x in
            (fovea.quantised(k, "i8"), v)), k_scale=s, layout=layout)
        for other in (copy.copy(plan), copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
            assert str(other) == str(plan)


def test_zero_in_the_scale():
    u = RNG.integers(0, 16, (B, H, T, D), dtype=np.uint8)
    packed = u[..., 0::2] | u[..., 1::2] << 4
    scale = positive(B, H, T, 1).view(np.uint32) & ~np.uint32(15)
    zero = RNG.integers(0, 16, (B, H, T, 1), dtype=np.uint32)
    k = fovea.quantised(packed, "u4")
    s = fovea.quantised((scale | zero).view(np.float32), "f32_z4")
    x = (u.astype(np.float32) - zero) * scale.view(np.float32)
    close(fovea.attention(Q, k, k, k_scale=s, v_scale=s), x, x)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = RNG.standard_normal((B, H, T, D)).astype(getattr(ml_dtypes, name))
    close(fovea.attention(Q, x, x), x.astype(np.float32), x.astype(np.float32))
    as_bytes = fovea.quantised(x.view(np.uint8), name.replace("float8", "f8"))
    close(fovea.attention(Q, as_bytes, x), x.astype(np.float32), x.astype(np.float32))


def test_groups_that_lie_apart():
    g, step = 32, 40
    row = np.zeros((B, H, T, D // g, step), np.uint8)
    row[..., 8:] = codes(np.uint8).reshape(B, H, T, D // g, g)
    row[..., :4] = positive(B, H, T, D // g, 1).view(np.uint8)
    row[..., 4:8] = (RNG.random((B, H, T, D // g, 1), np.float32) * 200).view(np.uint8)
    numbers = row.view(np.float32)[..., :2]
    x = ((row[..., 8:] - numbers[..., 1:]) * numbers[..., :1]).reshape(B, H, T, D)
    flat = row.reshape(B, H, T, -1)
    k = np.lib.stride_tricks.as_strided(flat[..., 8:], (B, H, T, D), flat.strides)
    keywords = {f"{t}_{what}": numbers[..., n] for t in "kv" for n, what in enumerate(("scale", "zero"))}
    close(fovea.attention(Q, k, k, k_group_stride=step, v_group_stride=step, **keywords), x, x)


def test_mistakes():
    k = codes(np.int8)
    f = np.zeros((B, H, T, D), np.float32)
    with pytest.raises(ValueError, match="k_scale"):
        fovea.attention(Q, k, f)
    with pytest.raises(ValueError, match="v_scale"):
        fovea.attention(Q, f, f, v_scale=f)
    with pytest.raises(ValueError, match="expected one of"):
        fovea.quantised(k, "q9_0")
    with pytest.raises(ValueError, match="multiple of 34"):
        fovea.attention(Q, fovea.quantised(k, "q8_0"), f)
    with pytest.raises(TypeError, match="k has elements"):
        fovea.attention(Q, fovea.quantised(f, "q8_0"), f)
    with pytest.raises(fovea.UnsupportedError, match="stride"):
        fovea.attention(Q[..., :32], k[..., ::2], f, k_scale=positive(1, 1, 1, 1))
