"""fovea.gradients against the textbook in float64, in NumPy and PyTorch."""

import numpy as np
import pytest

import fovea


def textbook(q, k, v, dout, dlse, bias=None, causal=False, softcap=0.0):
    """dq, dk, dv and dbias in float64, of Hq heads over Hkv."""
    q, k, v, dout, dlse = (np.asarray(x, np.float64) for x in (q, k, v, dout, dlse))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scale = q.shape[-1] ** -0.5
    s = np.einsum("bhid,bhjd->bhij", q, k) * scale
    derivative = 1.0
    if softcap:
        s = softcap * np.tanh(s / softcap)
        derivative = 1 - (s / softcap) ** 2
    if bias is not None:
        s = s + bias
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = np.einsum("bhid,bhjd->bhij", dout, v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True) + dlse[..., None])
    dx = ds * derivative

    def heads(x):
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    dq = np.einsum("bhij,bhjd->bhid", dx, k) * scale
    dk = heads(np.einsum("bhij,bhid->bhjd", dx, q)) * scale
    return dq, dk, heads(np.einsum("bhij,bhid->bhjd", p, dout)), ds


@pytest.fixture(scope="module")
def arrays():
    random = np.random.default_rng(0)

    def normal(*shape):
        return random.standard_normal(shape, dtype=np.float32)

    return normal(2, 4, 33, 16), normal(2, 2, 50, 16), normal(2, 2, 50, 24), normal(2, 4, 33, 24), normal(2, 4, 33), normal(1, 4, 33, 50)


def test_matches_the_textbook(arrays):
    q, k, v, dout, dlse, bias = arrays
    options = {"bias": bias, "causal": "top-left", "softcap": 2.0}
    out, lse = fovea.attention(q, k, v, return_lse=True, **options)
    got = fovea.gradients(q, k, v, out, lse, dout, dlse, of=("q", "k", "v", "bias"), **options)
    want = list(textbook(q, k, v, dout, dlse, bias, True, 2.0))
    want[3] = want[3].sum(0, keepdims=True)
    for x, e in zip(got, want):
        assert x.dtype == np.float32
        assert np.abs(x - e).max() < 1e-5 * max(1, np.abs(e).max())


def test_layouts_and_ranks(arrays):
    q, k, v, dout, _, _ = arrays
    out, lse = fovea.attention(q, k, v, return_lse=True)
    want = fovea.gradients(q, k, v, out, lse, dout)

    def swapped(x):
        return np.ascontiguousarray(np.swapaxes(x, 1, 2))

    got = fovea.gradients(swapped(q), swapped(k), swapped(v), swapped(out), lse, swapped(dout), layout="BTHD")
    for x, e in zip(got, want):
        assert np.array_equal(np.swapaxes(x, 1, 2), e)
    for x, e in zip(fovea.gradients(q[1], k[1], v[1], out[1], lse[1], dout[1]), want):
        assert np.array_equal(x, e[1])


def test_into_and_accumulate(arrays):
    q, k, v, dout, _, _ = arrays
    out, lse = fovea.attention(q, k, v, return_lse=True)
    dq, dk, _ = fovea.gradients(q, k, v, out, lse, dout)
    mine = {"q": np.full_like(q, 2), "k": np.full_like(k, 3)}
    got = fovea.gradients(q, k, v, out, lse, dout, of=("k", "q"), into=mine)
    assert got[0] is mine["k"] and got[1] is mine["q"]
    assert np.array_equal(mine["q"], dq) and np.array_equal(mine["k"], dk)
    fovea.gradients(q, k, v, out, lse, dout, of=("k", "q"), into=mine, accumulate=True)
    assert np.allclose(mine["q"], 2 * dq) and np.allclose(mine["k"], 2 * dk)


@pytest.mark.parametrize(
    ("error", "text", "options"),
    [
        (ValueError, "of: 'x'", {"of": ("x",)}),
        (TypeError, "of: expected", {"of": "q"}),
        (ValueError, "twice", {"of": ("q", "q")}),
        (ValueError, "accumulate: expected an array", {"accumulate": True}),
        (TypeError, "accumulate = 1", {"accumulate": 1}),
        (ValueError, "without sinks", {"of": ("sinks",)}),
        (TypeError, "into: expected a dict", {"into": ()}),
        (ValueError, "weights and scores", {"return_weights": True}),
        (TypeError, "unexpected", {"dropout": 0.5}),
        (fovea.UnsupportedError, "engine = row", {"engine": "row"}),
    ],
)
def test_what_is_wrong_is_said(arrays, error, text, options):
    q, k, v, dout, _, _ = arrays
    out, lse = fovea.attention(q, k, v, return_lse=True)
    with pytest.raises(error, match=text):
        fovea.gradients(q, k, v, out, lse, dout, **options)


def test_overlap_is_refused(arrays):
    q, k, v, dout, _, _ = arrays
    out, lse = fovea.attention(q, k, v, return_lse=True)
    q = q.copy()
    with pytest.raises(ValueError, match="overlap"):
        fovea.gradients(q, k, v, out, lse, dout, into={"q": q})


def test_pytorch_trains_on_it():
    torch = pytest.importorskip("torch")
    import fovea.torch

    sdpa = torch.nn.functional.scaled_dot_product_attention
    torch.manual_seed(0)

    def gradients(*tensors, **options):
        q, k, v = (x.clone().requires_grad_() for x in tensors[:3])
        sdpa(q, k, v, **options).backward(tensors[3])
        return q.grad, k.grad, v.grad

    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)):
        tensors = [torch.randn(2, 4, 70, 32, dtype=dtype) for _ in range(4)]
        empty = torch.rand(2, 1, 70, 70) < 0.7
        empty[:, :, 3] = False
        for options in ({}, {"is_causal": True}, {"attn_mask": empty}, {"scale": 0.3}):
            want = gradients(*(x.double() for x in tensors), **options)
            plain = gradients(*tensors, **options)
            with fovea.torch.patch():
                got = gradients(*tensors, **options)
                again = gradients(*tensors, **options)
            for x, e, p, y in zip(got, want, plain, again):
                e = torch.nan_to_num(e)
                assert (x.double() - e).abs().max() <= bound * max(1, float(e.abs().max()))
                assert x.stride() == p.stride()  # compilers rely on it
                assert torch.equal(x, y)
            assert torch.equal(gradients(*tensors, **options)[0], plain[0])  # undone


def test_pytorch_compiles_it():
    torch = pytest.importorskip("torch")
    import fovea.torch

    q, k, v, dout = (torch.randn(1, 2, 40, 16) for _ in range(4))

    def loss(q, k, v):
        return (torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True) * dout).sum()

    def gradients(f):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        f(*leaves).backward()
        return [x.grad for x in leaves]

    with fovea.torch.patch():
        eager = gradients(loss)
        compiled = gradients(torch.compile(loss, backend="aot_eager", fullgraph=True))
    for x, e in zip(compiled, eager):
        assert torch.allclose(x, e, atol=1e-6)
