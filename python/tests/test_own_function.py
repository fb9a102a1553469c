"""fovea.torch.scaled_dot_product_attention and the operator behind it: subclasses, tracers, vmap, gradients and compilers."""

import pytest

torch = pytest.importorskip("torch")

import fovea.torch  # noqa: E402
from sdpa_cases import B, D, H, Sub, T, Wrapper, k, long_k, mask, q, q2, randn, sdpa, v  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn.attention.bias import causal_lower_right  # noqa: E402


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
