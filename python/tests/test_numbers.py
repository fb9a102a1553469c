"""Numbers as programs have them: Python's, NumPy's scalars and arrays of no axes; and those that float32 cannot hold."""

import fractions

import numpy as np
import pytest

import fovea

rng = np.random.default_rng(0)
q = rng.standard_normal((1, 2, 5, 8), dtype=np.float32)
k, v = (rng.standard_normal((1, 2, 9, 8), dtype=np.float32) for _ in range(2))


class Index:
    def __index__(self):
        return 3

    def __repr__(self):  # the test's name, which two processes must agree on
        return "Index()"


INTEGERS = [np.int64(3), np.int32(3), np.uint8(3), np.int16(3), np.array(3), np.array(3, np.uint32), Index()]


@pytest.mark.parametrize("three", INTEGERS, ids=repr)
def test_integers(three):
    expected = fovea.attention(q, k, v, causal="top-left", query_offset=3, window=(3, 3))
    got = fovea.attention(q, k, v, causal="top-left", query_offset=three, window=(three, three), threads=three)
    assert np.array_equal(got, expected)
    lengths = fovea.attention(q, k, v, kv_lengths=[3])
    assert np.array_equal(fovea.attention(q, k, v, kv_lengths=[three]), lengths)
    assert np.array_equal(fovea.attention(q, k, v, kv_lengths=(three,)), lengths)
    plan = fovea.Plan(q, k, v, max_queries=np.int64(8), max_keys=np.int64(16))
    assert plan.workspace_bytes(three) == plan.workspace_bytes(3)
    assert np.array_equal(fovea.alibi_slopes(three), fovea.alibi_slopes(3))
    blocks = np.ones((2, 3), bool)
    assert np.array_equal(fovea.attention(q, k, v, block_map=(blocks, three, three)), fovea.attention(q, k, v, block_map=(blocks, 3, 3)))
    bits = np.packbits(np.ones((5, 9), bool), axis=-1, bitorder="little")
    assert np.array_equal(fovea.attention(q, k, v, mask_bits=bits, mask_shape=(np.int64(5), np.int64(9))), fovea.attention(q, k, v))
    before = fovea.get_threads()
    try:
        fovea.set_threads(three)
        assert fovea.get_threads() == 3
    finally:
        fovea.set_threads(before)


@pytest.mark.parametrize("half", [np.float64(0.5), np.float32(0.5), np.float16(0.5), np.array(0.5), np.array(0.5, np.float32), fractions.Fraction(1, 2)], ids=repr)
def test_floats(half):
    expected = fovea.attention(q, k, v, scale=0.5, softcap=0.5, sinks=[0.5, 0.5], head_scales=[0.5, 1])
    got = fovea.attention(q, k, v, scale=half, softcap=half, sinks=[half, half], head_scales=[half, np.int64(1)])
    assert np.array_equal(got, expected)
    assert np.array_equal(fovea.alibi_slopes(4, max_bias=half), fovea.alibi_slopes(4, max_bias=0.5))


def test_bfloat16_scalars():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert np.array_equal(fovea.attention(q, k, v, scale=ml_dtypes.bfloat16(0.5)), fovea.attention(q, k, v, scale=0.5))


def test_booleans():
    out, lse = fovea.attention(q, k, v, return_lse=np.True_, causal=np.True_)
    assert np.array_equal(out, fovea.attention(q, k, v, causal=True, return_lse=np.False_))
    assert np.array_equal(fovea.attention(q, k, v, causal=np.False_), fovea.attention(q, k, v, causal=False))
    with pytest.raises(TypeError, match="return_lse"):
        fovea.attention(q, k, v, return_lse=1)
    with pytest.raises(TypeError, match="return_lse"):
        fovea.attention(q, k, v, return_lse=np.array([True]))


@pytest.mark.parametrize(
    "error, keywords",
    [
        (TypeError, {"query_offset": 3.0}),
        (TypeError, {"query_offset": np.float32(3)}),
        (TypeError, {"query_offset": np.array(3.0)}),
        (TypeError, {"query_offset": np.uint64(2**63)}),
        (TypeError, {"window": (np.float64(1), 1)}),
        (TypeError, {"window": ("1", "1")}),
        (TypeError, {"threads": np.array([1])}),
        (TypeError, {"threads": 2**40}),
        (TypeError, {"kv_lengths": [3.0]}),
        (TypeError, {"kv_lengths": [np.array([3])]}),
        (TypeError, {"scale": "0.5"}),
        (TypeError, {"scale": np.str_("0.5")}),
        (TypeError, {"scale": 1j}),
        (TypeError, {"scale": np.complex64(1)}),
        (TypeError, {"scale": np.array([0.5])}),
        (TypeError, {"scale": [0.5]}),
        # float32 must hold them, and what is not 0 must not become "none"
        (ValueError, {"softcap": 1e-50}),
        (ValueError, {"scale": 1e-50}),
        (ValueError, {"scale": -(2.0**-150)}),
        (ValueError, {"scale": np.longdouble(2) ** -200}),
        (ValueError, {"sinks": [1e-50, 0]}),
        (ValueError, {"head_scales": [1, -1e-50]}),
        (ValueError, {"alibi_slopes": [1e-50, 0]}),
        (ValueError, {"softcap": np.float64(1e-50)}),
        (ValueError, {"softcap": 1e40}),
        (ValueError, {"softcap": float("inf")}),
        (ValueError, {"scale": 1e40}),
        (ValueError, {"scale": -(10**400)}),
        (ValueError, {"sinks": [1e40, 0]}),
        (ValueError, {"head_scales": [1, np.float64(1e39)]}),
    ],
    ids=repr,
)
def test_refused(error, keywords):
    (name,) = keywords
    with pytest.raises(error, match=name):
        fovea.attention(q, k, v, **keywords)


def test_numbers_that_float32_holds():
    """The least and the greatest ones, and what rounds to them; 0 is 0."""
    for least in (2.0**-149, 1.01 * 2.0**-150):
        assert np.isfinite(fovea.attention(q, k, v, scale=least)).all()
    expected = fovea.attention(q, k, v, softcap=float(np.finfo(np.float32).max))
    assert np.array_equal(fovea.attention(q, k, v, softcap=3.4028235e38), expected)
    assert np.array_equal(fovea.attention(q, k, v, softcap=3.4028235677e38), expected)  # nearer to it than to infinity
    assert np.array_equal(fovea.attention(q, k, v, scale=-0.0), fovea.attention(q, k, v, scale=0))
    assert np.isfinite(fovea.attention(q, k, v, sinks=[-np.inf, -np.inf])).all()


def test_zero_dimensional_tensors():
    torch = pytest.importorskip("torch")
    expected = fovea.attention(q, k, v, causal="top-left", query_offset=3, scale=0.5)
    assert np.array_equal(fovea.attention(q, k, v, causal="top-left", query_offset=torch.tensor(3), scale=torch.tensor(0.5)), expected)
    assert np.array_equal(fovea.attention(q, k, v, causal="top-left", query_offset=torch.tensor([3]), scale=0.5), expected)  # one per sequence


@pytest.mark.parametrize("name", ["q", "k", "v", "out", "bias", "mask", "kv_lengths"])
def test_masked_arrays_are_refused(name):
    arrays = {"q": q, "k": k, "v": v, "out": np.empty_like(q), "bias": np.zeros((5, 9), np.float32), "mask": np.ones((5, 9), bool), "kv_lengths": np.array([9])}
    given = {"q": q, "k": k, "v": v, name: np.ma.masked_array(arrays[name], mask=False)}
    with pytest.raises(TypeError, match=f"{name} is a masked array"):
        fovea.attention(**given)


def test_masked_arrays_are_refused_by_onnx():
    import fovea.onnx

    for name in ("K", "past_key", "attn_mask"):
        given = {"Q": q, "K": k, "V": v, "past_key": k, "past_value": v, "attn_mask": np.zeros((5, 18), np.float32)}
        given[name] = np.ma.masked_array(given[name], mask=False)
        with pytest.raises(TypeError, match=f"{name} is a masked array"):
            fovea.onnx.attention(**given)


def test_head_size_zero_is_refused():
    """A softmax of products over nothing would be uniform; it is refused, with its name."""
    with pytest.raises(ValueError, match=r"q.shape\[3\] = 0, expected 1 or greater"):
        fovea.attention(q[..., :0], k[..., :0], v)
    with pytest.raises(ValueError, match=r"v.shape\[3\] = 0, expected 1 or greater"):
        fovea.attention(q, k, v[..., :0])
