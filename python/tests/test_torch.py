"""PyTorch: tensors without copies, and its own attention function as the reference of the drop-in."""

import os
import threading
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import fovea  # noqa: E402
import fovea.torch  # noqa: E402

TYPES = [torch.float32, torch.float16, torch.bfloat16]
own_sdpa = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def no_grad():
    fovea.torch._warned.clear()
    with torch.no_grad():
        yield


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def close(got, q, k, v, **keywords):
    """No further from float64 than twice PyTorch's own rounding in that type, and a little for float32."""
    wide = [x.double() for x in (q, k, v)]
    mask = keywords.get("attn_mask")
    exact = own_sdpa(*wide, **{**keywords, "attn_mask": mask.double() if mask is not None and mask.dtype != torch.bool else mask})
    assert got.shape == exact.shape and got.dtype == q.dtype
    bound = {torch.float32: 1e-5, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}[q.dtype] * float(v.abs().max())
    assert float((got.double() - exact).abs().max()) <= bound


@pytest.mark.parametrize("dtype", TYPES)
def test_tensors_are_borrowed(dtype):
    q = randn(2, 33, 4, 16, dtype=dtype).transpose(1, 2)
    k, v = (randn(2, 2, 40, 48, dtype=dtype)[..., ::3] for _ in range(2))
    out = torch.empty(2, 33, 4, 16, dtype=dtype).transpose(1, 2)
    assert fovea.attention(q, k, v, out=out) is out
    close(out, q, k, v, enable_gqa=True)
    fresh, lse = fovea.attention(q, k, v, return_lse=True)
    assert isinstance(fresh, torch.Tensor) and fresh.dtype == dtype and lse.dtype == torch.float32
    assert torch.equal(fresh, out)
    # The memory of NumPy and PyTorch mixes.
    if dtype == torch.float32:
        assert torch.equal(fovea.attention(q, k.numpy(), v.numpy()), out)


def test_outputs_that_overlap_inputs():
    qkvo = randn(2, 33, 4, 3, 16)
    q, k, v, out = (x.transpose(1, 2) for x in qkvo.unbind(2))  # out lies between the inputs
    expected = fovea.attention(q, k, v)
    assert torch.equal(fovea.attention(q, k, v, out=out), expected)
    for name, x in (("q", q), ("k", k), ("v", v)):
        with pytest.raises(ValueError, match=f"out and {name} overlap"):
            fovea.attention(q, k, v, out=x)


def test_outputs_live_as_other_tensors_do():
    q = randn(1, 2, 8, 16)
    out = fovea.attention(q, q, q)
    copy, view = out.clone(), out[0]
    del out
    assert torch.equal(view, copy[0])
    view += 1
    assert torch.equal(view, copy[0] + 1)


def test_refused_tensors():
    q = randn(1, 2, 8, 16)
    with torch.enable_grad():
        with pytest.raises(ValueError, match="k requires a gradient"):
            fovea.attention(q, q.clone().requires_grad_(), q)
    parameter = torch.nn.Parameter(q)
    assert torch.equal(fovea.attention(parameter, q, q), fovea.attention(q, q, q))  # nothing flows under no_grad
    with pytest.raises(ValueError, match="meta"):
        fovea.attention(q, q.to("meta"), q)
    with pytest.raises(ValueError, match="q is no dense tensor"):
        fovea.attention(q.to_sparse(), q, q)
    with pytest.raises(TypeError, match="float64"):
        fovea.attention(q.double(), q, q)
    with pytest.raises(TypeError, match="complex"):
        fovea.attention(q.to(torch.complex64), q, q)
    negated = torch.complex(q, q).conj().imag
    assert negated.is_neg()
    with pytest.raises(ValueError, match="negated"):
        fovea.attention(negated, q, q)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "shapes, keywords",
    [
        (((2, 4, 9, 16), (2, 4, 12, 16), (2, 4, 12, 8)), {}),
        (((2, 4, 9, 16), (2, 4, 12, 16), (2, 4, 12, 8)), {"is_causal": True}),
        (((2, 4, 12, 16), (2, 4, 9, 16), (2, 4, 9, 16)), {"is_causal": True, "scale": 0.3}),
        (((2, 6, 9, 16), (2, 2, 12, 16), (2, 2, 12, 8)), {"enable_gqa": True}),
        (((3, 9, 16), (3, 12, 16), (3, 12, 8)), {"is_causal": True}),
        (((9, 16), (12, 16), (12, 8)), {}),
        (((2, 3, 4, 9, 16), (2, 3, 4, 12, 16), (2, 3, 4, 12, 8)), {}),
        (((2, 3, 6, 9, 16), (2, 3, 2, 12, 16), (2, 3, 2, 12, 8)), {"enable_gqa": True, "is_causal": True}),
        (((3, 1, 4, 9, 16), (1, 2, 4, 12, 16), (3, 2, 4, 12, 8)), {}),
        (((2, 4, 9, 16), (1, 4, 12, 16), (1, 4, 12, 8)), {}),
        (((1, 4, 9, 16), (2, 4, 12, 16), (2, 4, 12, 8)), {}),
        (((2, 4, 9, 16), (2, 1, 12, 16), (2, 1, 12, 8)), {}),
    ],
)
def test_drop_in(dtype, shapes, keywords):
    q, k, v = (randn(*shape, dtype=dtype) for shape in shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(fovea.torch.scaled_dot_product_attention(q, k, v, **keywords), q, k, v, **keywords)


@pytest.mark.parametrize("shape", [(9, 12), (1, 12), (9, 1), (1, 1, 9, 12), (2, 1, 1, 12), (1, 4, 1, 12), (2, 4, 9, 12), (4, 9, 12)])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_masks(shape, kind):
    q, k, v = randn(2, 4, 9, 16), randn(2, 4, 12, 16), randn(2, 4, 12, 8)
    mask = randn(*shape)
    if kind is torch.bool:
        mask = mask > -0.3
        mask[..., 0] = True
    close(fovea.torch.scaled_dot_product_attention(q, k, v, mask), q, k, v, attn_mask=mask)


def test_masks_of_five_axes():
    q, k, v = randn(2, 3, 4, 9, 16), randn(2, 3, 4, 12, 16), randn(2, 3, 4, 12, 8)
    for shape in ((2, 1, 4, 9, 12), (1, 3, 1, 1, 12), (9, 12)):
        mask = randn(*shape)
        close(fovea.torch.scaled_dot_product_attention(q, k, v, mask), q, k, v, attn_mask=mask)


def test_rows_without_a_key_are_zero():
    q = randn(1, 1, 4, 8)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    out = fovea.torch.scaled_dot_product_attention(q, q, q, mask)
    assert (out[0, 0, 2] == 0).all() and torch.equal(out.isnan(), torch.zeros_like(mask[:, :1]).expand(1, 1, 4, 8))


def test_dropout_is_refused():
    q = randn(1, 1, 4, 8)
    with pytest.raises(ValueError, match="dropout"):
        fovea.torch.scaled_dot_product_attention(q, q, q, dropout_p=0.1)


def test_errors_are_those_of_pytorch():
    q = randn(1, 4, 4, 8)
    for arguments, keywords in [
        ((q, q[:, :2], q[:, :2]), {}),  # enable_gqa is missing
        ((q, q[..., :4], q), {}),
    ]:
        with pytest.raises(RuntimeError):
            own_sdpa(*arguments, **keywords)
        with pytest.raises(RuntimeError):
            fovea.torch.scaled_dot_product_attention(*arguments, **keywords)
    with pytest.raises(ValueError, match=r"v.shape\[2\] = 3"):
        fovea.torch.scaled_dot_product_attention(q, q, q[:, :, :3])


def test_fallbacks_warn_once_for_each_reason():
    q = randn(1, 2, 4, 8)
    with fovea.torch.patch():
        assert F.scaled_dot_product_attention is own_sdpa  # it is the kernels that change
        with pytest.warns(fovea.torch.FallbackWarning, match="float64"):
            out = F.scaled_dot_product_attention(q.double(), q.double(), q.double())
        assert out.dtype == torch.float64
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            F.scaled_dot_product_attention(q.double(), q.double(), q.double())
        with pytest.warns(fovea.torch.FallbackWarning, match="dropout"):
            F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
        with torch.enable_grad(), pytest.warns(fovea.torch.FallbackWarning, match="gradients"):
            leaf = q.clone().requires_grad_()
            F.scaled_dot_product_attention(leaf, q, q[..., :3]).sum().backward()  # PyTorch has no kernel for dv ≠ dk, but a derivative of its parts
            assert leaf.grad is not None
        with pytest.warns(fovea.torch.FallbackWarning, match="shapes"):
            F.scaled_dot_product_attention(q[:, :1], q, q)
        with pytest.warns(fovea.torch.FallbackWarning, match="sdpa_kernel"), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            F.scaled_dot_product_attention(q, q, q)
    with pytest.warns(fovea.torch.FallbackWarning, match="meta"):
        fovea.torch.scaled_dot_product_attention(*(q.double().to("meta"),) * 3)


@pytest.fixture
def calls():
    """What Fovea computed, by the number of axes of the query."""
    seen = []
    fovea._operator.observe(lambda query, *_: seen.append(query.dim()))
    yield seen
    fovea._operator.observe(None)


def test_patch_reaches_modules(calls):
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True).train(False)
    x = randn(2, 7, 32)
    mask = torch.triu(torch.ones(7, 7, dtype=torch.bool), 1)
    torch.backends.mha.set_fastpath_enabled(False)  # it has an attention of its own
    try:
        expected = layer(x, x, x, attn_mask=mask, need_weights=False)[0]
        assert not calls
        with fovea.torch.patch(), fovea.torch.patch():
            got = layer(x, x, x, attn_mask=mask, need_weights=False)[0]
            n = len(calls)
        layer(x, x, x, attn_mask=mask, need_weights=False)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert n and len(calls) == n and torch.allclose(got, expected, atol=1e-5)


def test_threads_are_no_more_than_pytorchs():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert fovea.torch.threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forks with threads are the point
def test_pytorchs_threads_and_forks():
    """Calls run on the threads of PyTorch's operations; a child, where those do not work, has others. Same bits everywhere."""
    q = randn(2, 4, 512, 64)
    expected = fovea.attention(q, q, q, threads=1)
    for threads in (2, 3, 5):
        assert torch.equal(fovea.attention(q, q, q, threads=threads), expected)
    wrong = []
    callers = [threading.Thread(target=lambda: [wrong.append(1) for _ in range(10) if not torch.equal(fovea.attention(q, q, q, threads=3), expected)]) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
    out = torch.empty_like(q)
    child = os.fork()
    if child == 0:
        fovea.attention(q, q, q, threads=2, out=out)
        os._exit(0 if bytes(out.numpy()) == bytes(expected.numpy()) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_operator_checks():
    q, k, v = randn(2, 4, 9, 16), randn(2, 2, 12, 16), randn(2, 2, 12, 8)
    for arguments in (
        (q, k, v, None, True, None, True),
        (q.transpose(1, 2).contiguous().transpose(1, 2), k, v, None, True, None, True),
        (q.transpose(1, 2).contiguous().transpose(1, 2), k, k, randn(9, 12), False, 0.3, True),
        (q[0], q[0], q[0]),
        (q[0, 0], q[0, 0], q[0, 0]),
        (q[:1], q, q),
        (q[None], q[None], q[None].mT.contiguous().mT),
    ):
        torch.library.opcheck(torch.ops.fovea.attention.default, arguments)
    torch.library.opcheck(torch.ops.fovea.attention.extended, (q, k, v, None, True, None, True, randn(9, 12), randn(4), torch.tensor([3, 12])),
                          {"softcap": 2.0, "window_left": 3, "query_offset": 2})  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic):
    """The operator stays in the graph: no break, and it is Fovea's."""
    targets = []

    def backend(graph, _inputs):
        targets.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    def layer(q, k, v, mask):
        return fovea.torch.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask, enable_gqa=True) + 1

    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=dynamic)
    for T in (9, 13):
        q, k, v = randn(2, 4, T, 16), randn(2, 2, 12, 16), randn(2, 2, 12, 8)
        mask = randn(T, 12) > -0.5
        assert torch.allclose(compiled(q, k, v, mask), layer(q, k, v, mask))
    assert any("fovea" in target for target in targets), targets


def test_numpy_and_torch_types_of_lengths():
    q = randn(2, 2, 8, 16)
    lengths = torch.tensor([3, 8])
    expected = fovea.attention(q, q, q, kv_lengths=[3, 8])
    assert torch.equal(fovea.attention(q, q, q, kv_lengths=lengths), expected)
    assert torch.equal(fovea.attention(q, q, q, kv_lengths=np.array([3, 8], np.int32)), expected)
