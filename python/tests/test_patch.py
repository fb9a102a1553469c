"""fovea.torch.patch(): whatever way PyTorch's function is called, it does what it does without; and Fovea computes it."""

import copy
import io
import pickle
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import fovea  # noqa: E402
import fovea.torch  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402

B, H, T, D = 1, 2, 5, 8


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def sdpa(*arguments, **keywords):
    return F.scaled_dot_product_attention(*arguments, **keywords)


q, q2, k, v = (randn(B, H, T, D, seed=i) for i in range(4))


class Residual(torch.nn.Module):
    """Attention of its input, in one of the shapes: the kernel that PyTorch has, or what it is made of."""

    def __init__(self, dv=D, heads=True):
        super().__init__()
        self.dv, self.heads = dv, heads

    def forward(self, a):
        b = a if self.heads else a[0]
        return a[..., : self.dv] + F.scaled_dot_product_attention(b, b, b[..., : self.dv])


class Sub(torch.Tensor):
    seen = 0

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        if getattr(function, "__name__", "") == "scaled_dot_product_attention":
            Sub.seen += 1
        return super().__torch_function__(function, types, arguments, keywords or {})


class Wrapper(torch.Tensor):
    """Of the kind that quantised and sharded tensors are: no memory of its own, everything through __torch_dispatch__."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device, strides=inner.stride())

    def __init__(self, inner):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        def unwrap(x):
            return x.inner if isinstance(x, Wrapper) else x

        arguments, keywords = torch.utils._pytree.tree_map(unwrap, (arguments, keywords or {}))
        return torch.utils._pytree.tree_map(lambda x: Wrapper(x) if isinstance(x, torch.Tensor) else x, function(*arguments, **keywords))


def subclass():
    Sub.seen = 0
    x = q.as_subclass(Sub)
    out = sdpa(x, x, x)
    return [out.as_subclass(torch.Tensor), torch.tensor([Sub.seen, isinstance(out, Sub)])]


def function_mode():
    from torch.overrides import TorchFunctionMode

    class Listen(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, function, types, arguments=(), keywords=None):
            Listen.seen += getattr(function, "__name__", "") == "scaled_dot_product_attention"
            return function(*arguments, **(keywords or {}))

    with Listen():
        out = sdpa(q, q, q)
    return [out, torch.tensor(Listen.seen)]


def fake():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        x = mode.from_tensor(q)
        outs = [sdpa(x, x, x), sdpa(x, x, x[..., :3]), sdpa(x[0], x[0], x[0])]
    return [torch.tensor([*o.shape, *o.stride()]) for o in outs]


def checkpointed():
    from torch.utils.checkpoint import checkpoint

    x = q.clone().requires_grad_()
    checkpoint(lambda a: sdpa(a, a, a), x, use_reentrant=True).sum().backward()
    return x.grad


def nested():
    parts = [randn(3, 2, 8), randn(5, 2, 8)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    return list(sdpa(x, x, x).transpose(1, 2).unbind())


def exported(strict, module):
    return lambda: torch.export.export(module, (q,), strict=strict).module()(q2)


def make_fx(module):
    from torch.fx.experimental.proxy_tensor import make_fx as make

    return make(module)(q)(q2)


def scripted(module, *arguments):
    return torch.jit.script(module)(*arguments)


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


def no_fast_path(function):
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        return function()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def gradients(*shapes, **keywords):
    def run():
        tensors = [randn(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
        out = sdpa(*tensors, **keywords)
        (out * torch.cos(torch.arange(out.numel()).view(out.shape))).sum().backward()
        return [out.detach()] + [x.grad for x in tensors]

    return run


def in_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


mask = randn(T, T) > 0
mask[2] = False
float_mask = torch.where(mask, randn(T, T, seed=9), -torch.inf)
long_k = torch.cat([q, q2], 2)

# What each gives: tensors to compare, or an error to have in common.
CASES = {
    "plain": lambda: sdpa(q, k, v),
    "causal": lambda: sdpa(q, k, v, is_causal=True),
    "causal and a mask": lambda: sdpa(q, k, v, attn_mask=float_mask, is_causal=True),
    "boolean mask": lambda: sdpa(q, k, v, mask),
    "float mask": lambda: sdpa(q, k, v, float_mask),
    "groups": lambda: sdpa(q, k[:, :1], v[:, :1], enable_gqa=True),
    "groups without the flag": lambda: sdpa(randn(1, 4, T, D), k, v),
    "other sizes of values": lambda: sdpa(q, k, v[..., :3], is_causal=True),
    "other sizes of values, tokens before heads": lambda: sdpa(*(randn(B, T, H, n, seed=n).transpose(1, 2) for n in (D, D, 3))),
    "three axes": lambda: sdpa(q[0], k[0], v[0], mask),
    "two axes": lambda: sdpa(q[0, 0], k[0, 0], v[0, 0]),
    "five axes": lambda: sdpa(q[None], k[None], v[None], mask),
    "inner strides": lambda: sdpa(*(randn(B, H, D, T, seed=i).mT for i in range(3))),
    "tokens before heads": lambda: sdpa(*(randn(B, T, H, D, seed=i).transpose(1, 2) for i in range(3))),
    "float64": lambda: sdpa(q.double(), k.double(), v.double()),
    "bfloat16": lambda: sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16()),
    "causal bias, lower right": lambda: sdpa(q, long_k, long_k, attn_mask=causal_lower_right(T, 2 * T)),
    "causal bias, upper left": lambda: sdpa(q, long_k, long_k, attn_mask=causal_upper_left(T, 2 * T)),
    "vmap": lambda: torch.vmap(sdpa)(*(randn(3, B, H, T, D, seed=i) for i in range(3))),
    "vmap of three axes": lambda: torch.vmap(sdpa)(*(randn(3, H, T, D, seed=i) for i in range(3))),
    "jvp": lambda: torch.func.jvp(lambda x: sdpa(x, q, q), (q,), (q2,))[1],
    "jvp of three axes": lambda: torch.func.jvp(lambda x: sdpa(x, q[0], q[0]), (q[0],), (q2[0],))[1],
    "grad": lambda: torch.func.grad(lambda x: sdpa(x, q, q).sum())(q),
    "grad of three axes": lambda: torch.func.grad(lambda x: sdpa(x, q[0], q[0]).sum())(q[0]),
    "vmap of grad": lambda: torch.vmap(torch.func.grad(lambda x: sdpa(x, x, x).sum()))(torch.stack([q, q2])),
    "functionalize": lambda: torch.func.functionalize(lambda x: sdpa(x, x, x).add_(1))(q),
    "nested": nested,
    "fake": fake,
    "meta": lambda: torch.tensor(sdpa(*(q.to("meta"),) * 3).shape),
    "trace": lambda: torch.jit.trace(Residual(), q, check_trace=False)(q2),
    "trace, other sizes of values": lambda: torch.jit.trace(Residual(3), q, check_trace=False)(q2),
    "trace, three axes": lambda: torch.jit.trace(Residual(heads=False), q, check_trace=False)(q2),
    "make_fx": lambda: make_fx(Residual()),
    "make_fx, other sizes of values": lambda: make_fx(Residual(3)),
    "make_fx, three axes": lambda: make_fx(Residual(heads=False)),
    "symbolic_trace": lambda: torch.fx.symbolic_trace(Residual())(q2),
    "export, strict": exported(True, Residual()),
    "export": exported(False, Residual()),
    "export, other sizes of values": exported(False, Residual(3)),
    "script": lambda: scripted(Residual(), q2),
    "script of MultiheadAttention": lambda: no_fast_path(lambda: scripted(seeded(lambda: torch.nn.MultiheadAttention(D, 2, batch_first=True)), q[0], q[0], q[0])[0]),
    "script of TransformerEncoderLayer": lambda: no_fast_path(lambda: scripted(seeded(lambda: torch.nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)), q[0])),
    "deepcopy and pickle": lambda: pickle.loads(pickle.dumps(copy.deepcopy(F.scaled_dot_product_attention)))(q, k, v),
    "subclass": subclass,
    "wrapper": lambda: sdpa(*(Wrapper(q),) * 3).inner,
    "wrapper, other sizes of values": lambda: sdpa(Wrapper(q), Wrapper(q), Wrapper(q[..., :3])).inner,
    "function mode": function_mode,
    "checkpoint": checkpointed,
    "sdpa_kernel": lambda: [sdpa_kernel(SDPBackend.MATH)(lambda: sdpa(q, k, v))()],
    "no queries": lambda: sdpa(q[:, :, :0], k, v),
    "no keys": lambda: sdpa(q, k[:, :, :0], v[:, :, :0]),
    "no sequences": lambda: sdpa(q[:0], k[:0], v[:0]),
    "head size 0": lambda: sdpa(q[..., :0], k[..., :0], v),
    "value size 0": lambda: sdpa(q, k, v[..., :0]),
    "more values than keys": lambda: sdpa(q[0], k[0, :, :3], v[0]),
    "negative view": lambda: sdpa(torch._neg_view(q), k, v),
    "negative view, three axes": lambda: sdpa(torch._neg_view(q)[0], k[0], v[0]),
    "conjugate's imaginary part": lambda: sdpa(torch.complex(q, k).conj().imag, k, v),
    "scale 0": lambda: sdpa(q, k, v, scale=0.0),
    "scale below 0": lambda: sdpa(q, k, v, scale=-1.0),
    "sparse mask": lambda: sdpa(q, k, v, attn_mask=torch.ones(T, T).to_sparse()),
    "mask of one axis": lambda: sdpa(q, k, v, attn_mask=mask[0]),
    "mask of float64": lambda: sdpa(q, k, v, attn_mask=float_mask.double()),
    "mask of float16": lambda: sdpa(q, k, v, attn_mask=float_mask.half()),
    "mask that is too long": lambda: sdpa(q, k, v, attn_mask=torch.zeros(T, T + 2)),
    "a row of −inf": lambda: sdpa(q, k, v, attn_mask=torch.full((T, T), -torch.inf)),
    "types that differ": lambda: sdpa(q, k, v.bfloat16()),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16)(lambda: sdpa(q, k, v.bfloat16()))(),
    "inference mode": lambda: torch.inference_mode()(lambda: sdpa(q, k, v))().clone(),
    "another thread": lambda: in_thread(lambda: sdpa(q, k, v)),
    "gradients": gradients((2, 4, 7, 8), (2, 4, 9, 8), (2, 4, 9, 8)),
    "gradients, causal": gradients((2, 4, 7, 8), (2, 4, 7, 8), (2, 4, 7, 8), is_causal=True),
    "gradients, mask with an empty row": gradients((2, 4, T, 8), (2, 4, T, 8), (2, 4, T, 8), attn_mask=mask),
    "gradients, float mask": gradients((2, 4, T, 8), (2, 4, T, 8), (2, 4, T, 8), attn_mask=float_mask, scale=0.7),
    "gradients, groups": gradients((2, 4, 7, 8), (2, 2, 9, 8), (2, 2, 9, 8), enable_gqa=True),
    "gradients, tokens before heads": lambda: gradients((2, 4, 7, 8), (2, 4, 9, 8), (2, 4, 9, 8))(),
    "gradients, other sizes of values": gradients((2, 4, 7, 8), (2, 4, 9, 8), (2, 4, 9, 6)),
    "gradients, bias": lambda: gradients((2, 4, 7, 8), (2, 4, 9, 8), (2, 4, 9, 8), (7, 9))(),
}


def run(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = case()
        except Exception as error:  # noqa: BLE001
            return None, f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return (result if isinstance(result, list) else [result]), None


@pytest.mark.parametrize("name", CASES)
def test_same_as_without(name):
    expected, error = run(CASES[name])
    with fovea.torch.patch():
        got, patched_error = run(CASES[name])
    assert patched_error == error
    if error is None:
        assert len(got) == len(expected)
        for e, g in zip(expected, got):
            assert g.shape == e.shape and g.dtype == e.dtype and g.stride() == e.stride()
            tolerance = 2.0**-6 if e.dtype == torch.bfloat16 else 2e-5
            assert torch.allclose(g.double(), e.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.fixture
def calls(monkeypatch):
    seen = []
    real = fovea._core._operator
    monkeypatch.setattr(fovea._core, "_operator", lambda *a: seen.append(a[0].dtype) or real(*a))
    return seen


# Where PyTorch computes: as it must, as somebody asked, or as it does without asking for either kernel.
PYTORCHS = {
    "nested", "script of MultiheadAttention", "no queries", "no keys", "no sequences",
    "float64", "head size 0", "value size 0", "more values than keys", "sdpa_kernel", "fake", "meta", "jvp", "jvp of three axes", "grad of three axes", "vmap of three axes",
    "gradients, other sizes of values", "gradients, bias", "trace, other sizes of values", "trace, three axes", "export, other sizes of values", "types that differ",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CASES if name not in PYTORCHS])
def test_fovea_computes_it(name, calls):
    with fovea.torch.patch():
        _, error = run(CASES[name])
    assert calls or error


def test_autocast_runs_on_fovea(calls):
    with fovea.torch.patch(), warnings.catch_warnings(), torch.autocast("cpu", dtype=torch.bfloat16):
        warnings.simplefilter("error")
        assert sdpa(q, k, v.bfloat16()).dtype == torch.bfloat16
        assert fovea.torch.scaled_dot_product_attention(q, k, v.bfloat16()).dtype == torch.bfloat16 or torch.is_grad_enabled()
    assert calls == [torch.bfloat16] * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("module", [Residual(), Residual(3), Residual(heads=False)], ids=["flash", "math", "three axes"])
def test_compiled(module, backend, calls):
    torch._dynamo.reset()
    expected = module(q2)
    with fovea.torch.patch(), torch.no_grad():
        compiled = torch.compile(module, backend=backend, fullgraph=True)
        compiled(q)
        calls.clear()
        assert torch.allclose(compiled(q2), expected, atol=1e-5) and calls
    assert torch.allclose(compiled(q2), expected, atol=1e-5)


@pytest.mark.parametrize("module", [Residual(), Residual(3)], ids=["flash", "math"])
def test_compiled_training(module):
    torch._dynamo.reset()
    x = q.clone().requires_grad_()
    module(x).square().sum().backward()
    y = q.clone().requires_grad_()
    with fovea.torch.patch(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.compile(module, backend="aot_eager", fullgraph=True)(y).square().sum().backward()
    assert torch.allclose(x.grad, y.grad, atol=1e-4)


def test_forward_derivatives_are_not_lost():
    """PyTorch's kernel has none and says so; what it computes from parts has."""
    with fovea.torch.patch(), forward_ad.dual_level():
        dual = forward_ad.make_dual(q, q2)
        with pytest.raises(NotImplementedError, match="forward AD"):
            sdpa(dual, k, v)
        out = sdpa(dual, k, v[..., :3])
        tangent = forward_ad.unpack_dual(out).tangent
    step = 1e-3
    expected = (sdpa(q + step * q2, k, v[..., :3]) - sdpa(q - step * q2, k, v[..., :3])) / (2 * step)
    assert torch.allclose(tangent, expected, atol=1e-3)
    with forward_ad.dual_level(), pytest.warns(fovea.torch.FallbackWarning, match="forward mode"):
        fovea.torch._warned.clear()
        fovea.torch.scaled_dot_product_attention(forward_ad.make_dual(q, q2), k, v[..., :3])


def test_exported_to_onnx():
    """The attention is in the graph, and no constant of the example."""
    onnx = pytest.importorskip("onnx")
    file = io.BytesIO()
    with fovea.torch.patch(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Residual(), (q,), file, dynamo=False, opset_version=17)
    graph = onnx.load_from_string(file.getvalue()).graph
    assert "Softmax" in [node.op_type for node in graph.node]
    from onnx.reference import ReferenceEvaluator

    (out,) = ReferenceEvaluator(onnx.load_from_string(file.getvalue())).run(None, {graph.input[0].name: q2.numpy()})
    assert torch.allclose(torch.from_numpy(out), Residual()(q2), atol=1e-5)


def test_flops_are_counted():
    from torch.utils.flop_counter import FlopCounterMode

    flops = 4 * B * H * T * T * D
    with fovea.torch.patch(), FlopCounterMode(display=False) as counter:
        sdpa(q, k, v)
        fovea.torch.scaled_dot_product_attention(q, k, v)
    assert counter.get_total_flops() == 2 * flops
    with fovea.torch.patch(), FlopCounterMode(display=False) as counter, torch.no_grad():
        sdpa(q[0], k[0], v[0])
    assert counter.get_total_flops() == flops


def test_weights_that_nobody_computes_are_nan():
    with fovea.torch.patch(), torch.no_grad():
        for x in (q, q[0]):
            out, weights = torch.ops.aten._scaled_dot_product_attention_math(x, x, x)
            assert weights.shape == (*out.shape[:-1], T) and weights.dtype == x.dtype and bool(weights.isnan().all())


def test_logsumexp_is_pytorchs():
    arguments = (q, k, v, 0.0, False)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    for attn_mask in (None, torch.zeros(T, T).masked_fill(~mask, -torch.inf)):
        expected = flash(*arguments, attn_mask=attn_mask)
        with fovea.torch.patch():
            got = flash(*arguments, attn_mask=attn_mask)
        for e, g in zip(expected, got):
            assert g.stride() == e.stride() and torch.allclose(g, e, atol=1e-5)


def test_it_ends(calls):
    before = torch.library.get_kernel("aten::_scaled_dot_product_flash_attention_for_cpu", "CPU")
    for _ in range(3):
        with fovea.torch.patch(), fovea.torch.patch():
            sdpa(q, k, v)
        calls.clear()
        sdpa(q, k, v), sdpa(q[0], k[0], v[0])
        assert not calls
    assert before is not None
    with pytest.raises(KeyError), fovea.torch.patch():
        raise KeyError
    sdpa(q, k, v)
    assert not calls


def test_an_unknown_pytorch_is_refused(monkeypatch):
    from fovea import _patch

    monkeypatch.setattr(_patch, "_tested", False)
    monkeypatch.setitem(_patch._SCHEMAS, _patch._MATH, "(Tensor query) -> Tensor")
    with pytest.raises(RuntimeError, match="_scaled_dot_product_attention_math is .*, expected .*Tensor query. -> Tensor"), fovea.torch.patch():
        pass
    monkeypatch.undo()
    monkeypatch.setattr(_patch, "_tested", False)
    monkeypatch.setattr(_patch._core, "_operator", lambda *a: None)  # no kernel of ours answers
    with pytest.raises(RuntimeError, match="does not call"), fovea.torch.patch():
        pass
    monkeypatch.undo()
    assert torch.allclose(sdpa(q, k, v), sdpa(q.double(), k.double(), v.double()).float(), atol=1e-5)


# ---------------------------------------------------------------- Fovea's own function


def own(*arguments, **keywords):
    return fovea.torch.scaled_dot_product_attention(*arguments, **keywords)


@torch.no_grad()
def test_own_function_meets_subclasses():
    bias = causal_lower_right(T, 2 * T)
    assert torch.allclose(own(q, long_k, long_k, attn_mask=bias), sdpa(q, long_k, long_k, attn_mask=bias), atol=1e-5)
    x = q.as_subclass(Sub)
    Sub.seen = 0
    assert isinstance(own(x, x, x), Sub) and Sub.seen == 1
    assert torch.allclose(own(*(Wrapper(q),) * 3).inner, sdpa(q, q, q), atol=1e-5)
    with torch.device("cpu"):  # a function mode
        assert torch.allclose(own(q, k, v), sdpa(q, k, v), atol=1e-5)


@torch.no_grad()
def test_own_function_is_traced(calls):
    from torch.fx.experimental.proxy_tensor import make_fx as make

    class M(torch.nn.Module):
        def forward(self, a):
            return a + own(a, a, a)

    expected = q2 + sdpa(q2, q2, q2)
    for traced in (torch.jit.trace(M(), q, check_trace=False), make(M())(q), torch.export.export(M(), (q,)).module()):
        calls.clear()
        assert torch.allclose(traced(q2), expected, atol=1e-5) and calls


@torch.no_grad()
@pytest.mark.parametrize("dims", [(0, 0, 0), (0, None, None), (1, 2, 0)])
@pytest.mark.parametrize("rank", [2, 3, 4, 5])
def test_own_function_is_mapped(rank, dims, calls):
    shape = (2, B, H, T, D)[-rank:]
    tensors = [randn(*shape, seed=i) if dim is None else randn(*shape[:dim], 3, *shape[dim:], seed=i) for i, dim in enumerate(dims)]
    expected = torch.stack([sdpa(*(x if dim is None else x.select(dim, i) for x, dim in zip(tensors, dims))) for i in range(3)])
    assert torch.allclose(torch.vmap(own, in_dims=dims)(*tensors), expected, atol=1e-5)
    assert len(calls) <= 2
    masks = torch.stack([mask | torch.eye(T, dtype=torch.bool)] * 3)
    masks[1] = True
    expected = torch.stack([sdpa(*(x if dim is None else x.select(dim, i) for x, dim in zip(tensors, dims)), masks[i]) for i in range(3)])
    assert torch.allclose(torch.vmap(own, in_dims=(*dims, 0))(*tensors, masks), expected, atol=1e-5)


def test_the_operator_refuses_gradients():
    x = q.clone().requires_grad_()
    with pytest.raises(ValueError, match="gradients are asked for"):
        torch.ops.fovea.attention(x, x, x)
    with torch.no_grad():
        assert not torch.ops.fovea.attention(x, x, x).requires_grad
    with forward_ad.dual_level(), torch.no_grad(), pytest.raises(ValueError, match="forward mode"):
        torch.ops.fovea.attention(forward_ad.make_dual(q, q2), k, v)


def test_a_fallback_in_a_graph_says_so():
    torch._dynamo.reset()
    fovea.torch._warned.clear()
    with pytest.warns(fovea.torch.FallbackWarning, match="float64"):
        compiled = torch.compile(lambda x: own(x, x, x), backend="eager", fullgraph=True)
        assert torch.allclose(compiled(q.double()), sdpa(q.double(), q.double(), q.double()))
