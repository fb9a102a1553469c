"""Caches: what append() writes is what attention() reads."""

import numpy as np
import pytest

import fovea

RNG = np.random.default_rng(2)
TYPES = ["f32", "f16", "i8", "u8", "u4", "u4_high", "f8_e4m3fn", "f8_e5m2", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"]
# How far a number may be from what is read for it, in parts of its group's largest magnitude.
ERROR = {"f32": 0, "f16": 2**-11, "i8": 1 / 200, "u8": 1 / 200, "f8_e4m3fn": 2**-4, "f8_e5m2": 2**-3, "q8_0": 1 / 200, "q5_0": 1 / 15, "q5_1": 1 / 20}


def new(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("kind", TYPES)
def test_round_trip(kind):
    B, H, n, d = 2, 2, 9, 64
    cache = fovea.KVCache(B, 16, heads=H, dk=d, k_type=kind)
    k, v = new(B, H, n, d), new(B, H, n, d)
    assert cache.append(k, v) == 0
    assert cache.append(k[:, :, :2], v[:, :, :2], past_lengths=[n, n]) == 0
    q, lengths = new(B, H, 1, d), [n + 2, n + 2]
    got, weights = fovea.attention(q, cache.k, cache.v, kv_lengths=lengths, return_weights=True, **cache.keywords)
    all_k, all_v = np.concatenate([k, k[:, :, :2]], 2), np.concatenate([v, v[:, :, :2]], 2)
    # With the weights that the cache's keys give, out is what exact values give, up to the error of values.
    want = weights[..., : n + 2] @ all_v
    error = ERROR.get(kind, 1 / 7) * np.abs(all_v).max()
    assert np.abs(got - want).max() <= error + 1e-6
    exact = fovea.attention(q, all_k, all_v, return_weights=True)[1]
    if kind == "f32":
        np.testing.assert_allclose(weights[..., : n + 2], exact, rtol=0, atol=1e-6)


def test_bytes_of_q8_0():
    cache = fovea.KVCache(1, 4, heads=1, dk=32, dv=0, k_type="q8_0")
    x = new(1, 1, 2, 32)
    cache.append(x, slots=[2, 0])
    for row, slot in ((0, 2), (1, 0)):
        block = cache.k.array[0, 0, slot]
        d = np.abs(x[0, 0, row]).max() / np.float32(127)
        assert block[:2].view(np.float16)[0] == np.float16(d)
        product = x[0, 0, row] * (np.float32(1) / d)
        codes = np.trunc(product + np.copysign(np.float32(0.49999997), product)).astype(np.int8)
        np.testing.assert_array_equal(block[2:].view(np.int8), codes)
    assert not cache.k.array[0, 0, [1, 3]].any()


def test_slots_tables_rings_and_packed():
    H, d, page = 2, 8, 4
    k, v = new(1, H, 6, d), new(1, H, 6, d)
    cache = fovea.KVCache(5, page, heads=H, dk=d)
    cache.append(k, v, slots=np.array([[3, -1, 4, 3, 19, 0]]))
    rows = cache.k.transpose(0, 2, 1, 3).reshape(-1, H, d)
    for slot, token in ((3, 3), (4, 2), (19, 4), (0, 5)):
        np.testing.assert_array_equal(rows[slot], k[0, :, token])
    assert not rows[[1, 2, 5, 18]].any()

    by_table = fovea.KVCache(5, page, heads=H, dk=d)
    by_table.append(k, v, page_table=np.array([[-1, 4, 2]], np.int32), past_lengths=[5])
    rows = by_table.v.transpose(0, 2, 1, 3).reshape(-1, H, d)
    np.testing.assert_array_equal(rows[[17, 18, 19, 8, 9, 10]], v[0].transpose(1, 0, 2))
    by_begins = fovea.KVCache(5, page, heads=H, dk=d)
    by_begins.append(k, v, page_table=np.array([-1, 4, 2]), page_begins=[0, 3], past_lengths=[5])
    np.testing.assert_array_equal(by_begins.memory, by_table.memory)

    ring = fovea.KVCache(1, page, heads=H, dk=d, ring=True)
    ring.append(k, v)
    np.testing.assert_array_equal(ring.k[0], k[0][:, [4, 5, 2, 3]])
    assert ring.keywords == {"ring": True}

    packed = fovea.KVCache(2, page, heads=H, dk=d)
    packed.append(k, v, cu_seqlens=[0, 2, 6])
    np.testing.assert_array_equal(packed.k[0, :, :2], k[0, :, :2])
    np.testing.assert_array_equal(packed.k[1], k[0, :, 2:])
    lengths = fovea.KVCache(1, page, heads=H, dk=d)
    lengths.append(k.swapaxes(1, 2), v.swapaxes(1, 2), lengths=[3], layout="BTHD")
    np.testing.assert_array_equal(lengths.v[0, :, :3], v[0, :, :3])
    assert not lengths.v[0, :, 3].any()


def test_fixed_scales_and_lost_nans():
    scale = np.full((1, 2, 1, 8), 0.5, np.float32)
    scale.flags.writeable = False
    cache = fovea.KVCache(1, 4, heads=2, dk=8, k_type="i8", k_scale=scale, v_scale=scale)
    x = np.zeros((1, 2, 1, 8), np.float32)
    x[0, 0, 0] = [1, -1, 0.25, 0.75, 1e9, -np.inf, np.nan, 3]
    assert cache.append(x, x) == 2
    np.testing.assert_array_equal(cache.k[0, 0, 0], [2, -2, 0, 2, 127, -128, 0, 6])


def test_pages_are_rows_of_memory():
    cache = fovea.KVCache(3, 4, heads=2, dk=64, k_type="u8", v_type="q4_0")
    assert cache.nbytes == cache.memory.size and cache.memory.shape[0] == 3
    cache.append(new(1, 2, 4, 64), new(1, 2, 4, 64), slots=[4, 5, 6, 7])
    assert not cache.memory[[0, 2]].any() and cache.memory[1].any()
    cache.memory[2] = cache.memory[1]
    q = new(1, 2, 1, 64)
    results = []
    for page in (1, 2):
        scales = {name: x[page : page + 1] for name, x in cache.keywords.items()}
        v = fovea.quantised(cache.v.array[page : page + 1], "q4_0")
        results.append(fovea.attention(q, cache.k[page : page + 1], v, **scales))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("kind", ["f32", "u8", "q8_0"])
def test_no_pages(kind):
    cache = fovea.KVCache(0, 4, heads=2, dk=64, k_type=kind)
    assert cache.nbytes == 0 and cache.memory.shape[0] == 0
    cache.append(new(1, 2, 3, 64), new(1, 2, 3, 64), slots=[-1, -1, -1])
    out, lse = fovea.attention(new(1, 4, 2, 64), cache.k, cache.v, kv_lengths=[0], page_table=np.zeros((1, 0), np.int32), return_lse=True, **cache.keywords)
    assert not out.any() and np.isneginf(lse).all()


def test_threads_give_the_same_bytes():
    k = new(1, 4, 600, 64)
    caches = [fovea.KVCache(40, 16, heads=4, dk=64, k_type="q5_1") for _ in range(3)]
    slots = RNG.integers(-1, 640, (1, 600))
    for cache, threads in zip(caches, (1, 2, 5), strict=True):
        cache.append(k, k, slots=slots, threads=threads)
        np.testing.assert_array_equal(cache.memory, caches[0].memory)


@pytest.mark.parametrize(
    ("error", "message", "where"),
    [
        (ValueError, "tokens.slots", {"slots": [[0, 12]]}),
        (TypeError, "slots", {"slots": [0.5, 1]}),
        (ValueError, "past_lengths", {"past_lengths": [-1]}),
        (ValueError, "layout", {"layout": "HBTD"}),
        (ValueError, "threads", {"threads": 0}),
    ],
)
def test_errors_write_nothing(error, message, where):
    cache = fovea.KVCache(1, 4, heads=1, dk=4)
    x = new(1, 1, 2, 4)
    if "slots" in where and isinstance(where["slots"][0], list):
        where = {"slots": np.array(where["slots"])}
    with pytest.raises(error, match=message):
        cache.append(x, x, **where)
    assert not cache.memory.any()


def test_only_read():
    with pytest.raises(fovea.UnsupportedError, match="i4"):
        fovea.KVCache(1, 4, heads=1, dk=8, k_type="i4")
    cache = fovea.KVCache(1, 4, heads=1, dk=32, k_type="iq4_nl")
    with pytest.raises(fovea.UnsupportedError, match="iq4_nl"):
        cache.append(new(1, 1, 1, 32), new(1, 1, 1, 32))


def test_overlap_is_refused():
    memory = new(1, 1, 4, 8)
    with pytest.raises(ValueError, match="share memory"):
        fovea.append(memory[:, :, :2], memory[:, :, :2], k_cache=memory, v_cache=new(1, 1, 4, 8))
