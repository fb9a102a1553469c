"""fovea.torch.patch(): whatever way PyTorch's function is called, it does what it does without; and Fovea computes it."""

import io
import warnings

import pytest

torch = pytest.importorskip("torch")

import fovea.torch  # noqa: E402
from sdpa_cases import CASES, B, D, H, Residual, T, k, mask, q, q2, sdpa, v  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

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


# Where PyTorch computes: as it must, as somebody asked, or as it does without asking for either kernel.
PYTORCHS = {
    "nested", "script of MultiheadAttention", "no queries", "no keys", "no sequences",
    "scale that is 0 in float32", "scale that is 0 in float32, other sizes of values", "scale beyond float32", "scale beyond float32, three axes",
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
    monkeypatch.setattr(_patch._core, "_take_flash", lambda: None)  # no kernel of ours answers
    with pytest.raises(RuntimeError, match="does not call"), fovea.torch.patch():
        pass
    monkeypatch.undo()
    assert torch.allclose(sdpa(q, k, v), sdpa(q.double(), k.double(), v.double()).float(), atol=1e-5)
