"""Keys in pages, rings and caches that have dropped their first keys."""

import numpy as np
import pytest
import textbook

import fovea

B, Hq, Hkv, T, d, PAGE = 2, 4, 2, 40, 8, 16
rng = np.random.default_rng(5)
q, k, v = (rng.standard_normal((B, h, t, d), dtype=np.float32) for h, t in ((Hq, 3), (Hkv, T), (Hkv, T)))
LENGTHS = [37, 5]


def in_pages(x, table, pages, heads_first=True):
    """x [B, Hkv, T, d] in pages of 16, NaN where no key is."""
    to = np.full((pages, Hkv, PAGE, d), np.nan, np.float32)
    for b, length in enumerate(LENGTHS):
        for t in range(length):
            to[table[b][t // PAGE], :, t % PAGE] = x[b, :, t]
    return to if heads_first else np.ascontiguousarray(to.transpose(0, 2, 1, 3))


TABLE = [[4, 0, 2], [1, -1, 99]]
WANT = fovea.attention(q, k, v, causal=True, kv_lengths=LENGTHS)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_pages_have_the_bits_of_keys_in_order(dtype):
    table = np.array(TABLE, dtype)
    pages = [in_pages(x, TABLE, 5) for x in (k, v)]
    got = fovea.attention(q, *pages, causal=True, kv_lengths=LENGTHS, page_table=table)
    assert np.array_equal(got, WANT)
    # Tokens before heads, as most engines keep them.
    pages = [in_pages(x, TABLE, 5, heads_first=False) for x in (k, v)]
    got = fovea.attention(q.transpose(0, 2, 1, 3), *pages, causal=True, kv_lengths=LENGTHS, page_table=table, layout="BTHD", out_layout="BHTD")
    assert np.array_equal(got, WANT)


def test_a_list_of_numbers():
    pages = [in_pages(x, TABLE, 5) for x in (k, v)]
    keywords = {"causal": True, "kv_lengths": LENGTHS, "page_table": np.array([4, 0, 2, 1], np.int32), "page_begins": [0, 3, 4]}
    assert np.array_equal(fovea.attention(q, *pages, **keywords), WANT)
    out, weights = fovea.attention(q, *pages, **keywords, return_weights=True)
    assert weights.shape == (B, Hq, 3, 48)
    out, weights = fovea.attention(q, *pages, **keywords, return_weights=True, page_keys=T)
    assert weights.shape == (B, Hq, 3, T) and np.array_equal(out, WANT)


def test_plans_read_tables_when_they_run():
    table = np.array(TABLE, np.int32)
    pages = [in_pages(x, TABLE, 5) for x in (k, v)]
    keywords = {"causal": True, "kv_lengths": LENGTHS, "page_table": table}
    plan = fovea.Plan(q, *pages, **keywords)
    assert "pages of 16 keys" in str(plan)
    fixed = fovea.Plan(q, *pages, **keywords, fixed_tables=True)
    assert np.array_equal(plan.run(q, *pages), WANT) and np.array_equal(fixed.run(q, *pages), WANT)
    table[0, 0] = 5
    with pytest.raises(ValueError, match=r"pages.table\[0,0\] = 5"):
        plan.run(q, *pages)
    with pytest.raises(ValueError, match=r"pages.table\[0,0\] = 5"):
        fixed.update(q, *pages)


def test_a_ring():
    for length in (3, 40, 41, 95):
        whole = rng.standard_normal((2, 1, Hkv, length, d), dtype=np.float32)
        rings = np.full((2, 1, Hkv, T, d), np.nan, np.float32)
        for p in range(max(0, length - T), length):
            rings[..., p % T, :] = whole[..., p, :]
        window = (T - 3, None)
        want = fovea.attention(q[:1], *whole, causal=True, window=window)
        got = fovea.attention(q[:1], *rings, causal=True, window=window, ring=True, kv_lengths=[length])
        assert np.array_equal(got, want)


def test_dropped_keys():
    slopes = [0.5, 0.25, 0.125, 0.0625]
    whole = rng.standard_normal((2, B, Hkv, T + 70, d), dtype=np.float32)
    want = fovea.attention(q, *whole, causal=True, window=(20, 0), alibi_slopes=slopes)
    got = fovea.attention(q, *whole[:, :, :, 70:], causal=True, window=(20, 0), alibi_slopes=slopes, key_offsets=[70, 70])
    assert np.array_equal(got, want)
    lengths = np.array([T + 70] * B)
    expected, _, _ = textbook.attention(q, *whole, causal="bottom-right", window=(20, 0), alibi_slopes=slopes, kv_lengths=lengths)
    assert np.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(
    "error, words, keywords",
    [
        (ValueError, "pages.table.shape", {"page_table": np.zeros((3, 3), np.int32)}),
        (ValueError, "pages.table.rank", {"page_table": np.zeros(3, np.int32)}),
        (ValueError, "pages.table.dtype", {"page_table": np.zeros((B, 3), np.float32)}),
        (ValueError, "kv_lengths", {"page_table": np.zeros((B, 2), np.int32), "kv_lengths": [33, 1]}),
        (ValueError, "pages.begins", {"page_table": np.zeros(6, np.int32), "page_begins": [0, 7, 3]}),
        (ValueError, "pages.keys", {"page_table": np.zeros((B, 3), np.int32), "page_keys": -1}),
        (TypeError, "page_keys", {"page_table": np.zeros((B, 3), np.int32), "page_keys": 1.5}),
        (TypeError, "ring", {"ring": 2}),
        (ValueError, "ring", {"page_table": np.zeros((B, 3), np.int32), "ring": True}),
        (ValueError, "key_offsets", {"page_table": np.zeros((B, 3), np.int32), "key_offsets": [0, -1]}),
    ],
)
def test_wrong_caches_are_refused(error, words, keywords):
    pages = np.zeros((5, Hkv, PAGE, d), np.float32)
    with pytest.raises(error, match=words):
        fovea.attention(q, pages, pages, **keywords)
