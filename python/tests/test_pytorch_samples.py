"""PyTorch's own tests' samples, with and without patch(), and every call that Fovea computes again in float64. 200 samples for every change, all with -m pytorch."""

import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which torch.testing._internal needs
F = torch.nn.functional

import fovea  # noqa: E402
import fovea.torch  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

BOUND = {torch.float32: 1e-5, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}


@pytest.fixture
def recomputed(monkeypatch):
    """Counts the calls of Fovea's kernel, and holds each to float64."""
    seen = []
    real = fovea._core._operator

    def check(q, k, v, mask, causal, scale, groups, threads, second, options, out):
        result = real(q, k, v, mask, causal, scale, groups, threads, second, options, out)
        got = out if out is not None and second == 0 else result[0] if isinstance(result, tuple) else result
        if got is None or options is not None:
            return result
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            n = q.shape[1] // k.shape[1]
            Q, K, V = q.detach().double(), k.detach().double().repeat_interleave(n, 1), v.detach().double().repeat_interleave(n, 1)
            scores = Q @ K.mT * (scale if scale is not None else q.shape[-1] ** -0.5)
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask.detach().double()
            if causal:
                scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
            exact = torch.nan_to_num(torch.softmax(scores, -1), nan=0.0) @ V
            largest = float(v.detach().double().abs().max()) if v.numel() else 0.0
            error = float((got.detach().double() - exact).abs().max()) if got.numel() else 0.0
            finite = torch.where(scores.isfinite(), scores, 0.0).abs()
            partial = float(finite.max()) if finite.numel() else 0.0
            bound = BOUND[q.dtype] + 8 * 2.0**-24 * partial * (1 if q.dtype is torch.float32 else 2.0**13)
            assert error <= bound * largest, (error, bound * largest, q.shape, k.shape, v.shape, mask is not None, causal)
        seen.append(q.dtype)
        return result

    monkeypatch.setattr(fovea._core, "_operator", check)
    return seen


def outcome(function):
    try:
        return function(), None
    except Exception as error:  # noqa: BLE001
        return None, type(error).__name__


def compare(name, plain, patched, dtype):
    (expected, error), (got, patched_error) = plain, patched
    assert error == patched_error, name
    if error is None:
        expected, got = (x if isinstance(x, (tuple, list)) else (x,) for x in (expected, got))
        for e, g in zip(expected, got):
            if isinstance(e, torch.Tensor):
                # Both round scores of some hundreds: which of them is right, float64 tells above.
                tolerance = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 4e-2, torch.bfloat16: 2e-1}[dtype]
                largest = float(e.detach().abs().max()) if e.numel() and e.is_floating_point() else 0.0
                torch.testing.assert_close(g, e, rtol=tolerance, atol=tolerance * max(1.0, largest), equal_nan=True)


def sdpa_samples():
    (info,) = [op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention"]
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for gradient in (False, True):
            torch.manual_seed(0)
            for sample in info.sample_inputs("cpu", dtype, requires_grad=gradient):
                if not sample.kwargs.get("dropout_p"):
                    yield dtype, gradient, sample


def run_samples(stride, recomputed):
    n = 0
    for i, (dtype, gradient, sample) in enumerate(sdpa_samples()):
        if i % stride:
            continue
        n += 1

        def call(sample=sample, gradient=gradient):
            tensors = [sample.input, *sample.args, *sample.kwargs.values()]
            leaves = [x for x in tensors if isinstance(x, torch.Tensor) and x.requires_grad]
            out = F.scaled_dot_product_attention(sample.input, *sample.args, **sample.kwargs)
            return (out, *torch.autograd.grad(out.sum(), leaves, allow_unused=True)) if gradient and leaves else out

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = outcome(call)
            assert not recomputed or n > 1
            with fovea.torch.patch():
                patched = outcome(call)
        compare((i, dtype, [tuple(x.shape) for x in (sample.input, *sample.args)], sample.kwargs), plain, patched, dtype)
    return n


def test_200_samples_of_the_function(recomputed):
    total = sum(1 for _ in sdpa_samples())
    n = run_samples(max(1, total // 200), recomputed)
    assert n >= min(total, 200) and len(recomputed) >= n // 4


@pytest.mark.pytorch
def test_all_samples_of_the_function(recomputed):
    assert run_samples(1, recomputed) > 200


MODULES = ("MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer", "Transformer", "TransformerEncoder", "TransformerDecoder")


@pytest.mark.pytorch
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name, training, dtype, recomputed):
    infos = [info for info in module_db if info.name.split(".")[-1] == name]
    n = 0
    for info in infos:
        torch.manual_seed(0)
        for sample in info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=training):
            torch.manual_seed(1)
            module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).to(dtype).train(training)
            for part in module.modules():
                if isinstance(part, torch.nn.Dropout):
                    part.p = 0.0
                if isinstance(part, torch.nn.MultiheadAttention):
                    part.dropout = 0.0
            arguments, keywords = sample.forward_input.args, sample.forward_input.kwargs

            def call(module=module, arguments=arguments, keywords=keywords):
                return module(*arguments, **keywords)

            with warnings.catch_warnings(), torch.set_grad_enabled(training):
                warnings.simplefilter("ignore")
                plain = outcome(call)
                with fovea.torch.patch():
                    patched = outcome(call)
            compare((name, sample.desc), plain, patched, dtype)
            n += 1
    if not infos:
        pytest.skip("this PyTorch has no samples of it")
    assert n


@pytest.mark.pytorch
@pytest.mark.parametrize("way", ["scripted", "exported", "compiled", "nested"])
def test_encoders(way):
    torch.manual_seed(0)
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, dropout=0.0), 2).eval()
    x = torch.randn(2, 7, 32)
    torch.backends.mha.set_fastpath_enabled(way == "nested")
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = encoder(x)

            def call():
                if way == "scripted":
                    return torch.jit.script(encoder)(x)
                if way == "exported":
                    return torch.export.export(encoder, (x,)).module()(x)
                if way == "compiled":
                    torch._dynamo.reset()
                    return torch.compile(encoder, backend="aot_eager")(x)
                padding = torch.zeros(2, 7, dtype=torch.bool)
                padding[0, 5:] = True  # which makes the layers' input nested
                return encoder(x, src_key_padding_mask=padding)

            plain = outcome(call)
            with fovea.torch.patch():
                patched = outcome(call)
            compare(way, plain, patched, torch.float32)
            if way != "nested":
                torch.testing.assert_close(patched[0], expected, atol=1e-4, rtol=1e-4)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
