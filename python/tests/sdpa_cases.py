"""Ways of calling PyTorch's function, each of which gives tensors to compare, or an error to have in common."""

import copy
import pickle
import threading

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

F = torch.nn.functional

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
    "scale that is 0 in float32": lambda: sdpa(q, k, v, scale=1e-50),
    "scale that is 0 in float32, other sizes of values": lambda: sdpa(q, k, v[..., :3], scale=-1e-50),
    "scale beyond float32": lambda: sdpa(q, k, v, scale=1e40),
    "scale beyond float32, three axes": lambda: sdpa(q[0], k[0], v[0], scale=1e40),
    "a part of something": lambda: sdpa(*(randn(B, H, T, 3, D, seed=i)[..., i, :] for i in range(3))),
    "a part of something, tokens before heads": lambda: sdpa(*(randn(B, T, 3, H, D, seed=i)[:, :, i].transpose(1, 2) for i in range(3)), attn_mask=mask),
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
