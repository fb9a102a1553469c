"""PyTorch's own tests' samples, with and without patch(), held to float64: results, gradients, and every call that Fovea computes. 200 samples for every change, all with
-m pytorch."""

import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which torch.testing._internal needs
F = torch.nn.functional

import fovea.torch  # noqa: E402
from fovea import _operator  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

U = 2.0**-24  # the unit roundoff of float32, in which all sums are
ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: U, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
# What rounds to 0: weights below float32's normal numbers, 2⁻¹²⁶, times at most 64; half of float16's least number.
LEAST = {torch.float64: 2.0**-120, torch.float32: 2.0**-120, torch.float16: 2.0**-25, torch.bfloat16: 2.0**-120}
# Weights below this are 0 in Fovea, forward and backward (docs/gradients.md).
FLUSHED = 2.0**-64


class Exact:
    """Attention in float64, and how far from it one is that rounds scores, weights and sums to float32, and weights, what goes backwards and results to the type of query."""

    def __init__(self, q, k, v, mask=None, causal=False, scale=None):
        self.unit, self.least = ROUNDOFF[q.dtype], LEAST[q.dtype]
        self.flushed = 0.0 if q.dtype is torch.float64 else FLUSHED
        Q, K, V = (x.detach().double() for x in (q, k, v))
        if Q.dim() > 2:
            K, V = (x.repeat_interleave(Q.shape[-3] // x.shape[-3], -3) if x.shape[-3] not in (0, Q.shape[-3]) and Q.shape[-3] % x.shape[-3] == 0 else x for x in (K, V))
        self.Q, self.K, self.V = Q, K, V
        self.scale = scale if scale is not None else q.shape[-1] ** -0.5
        scores = Q @ K.mT * self.scale
        products = Q.abs() @ K.abs().mT * abs(self.scale)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask.detach().double()
        if causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        self.P = torch.nan_to_num(torch.softmax(scores, -1), nan=0.0)
        self.out = self.P @ V
        # A score is a sum of dk products, a factor, what is added, and its distance from the row's greatest: each rounded once.
        finite = torch.where(scores.isfinite(), scores, 0.0).abs()
        delta = (q.shape[-1] + 2) * U * products + 3 * U * finite
        delta = delta.amax(-1, keepdim=True) if delta.numel() else delta.sum(-1, keepdim=True)
        # A weight is e^score by a series that is good to 8 units, over a sum of Tk of them; its score and the row's greatest are each off by delta.
        self.weights = torch.expm1(2 * delta) + (k.shape[-2] + 16) * U + (2 * self.unit if self.unit > U else 0.0)

    def bound(self):
        """Of each result: off as its weights are, summed over Tk keys, rounded."""
        return (self.P @ self.V.abs()) * (self.weights + self.K.shape[-2] * U + self.unit) + self.least

    def gradient_bounds(self):
        """Of the gradients of out.sum() by query, key and value, heads that were repeated as such, and by the scores."""
        P, off = self.P, self.weights
        A = self.V.abs().sum(-1)[..., None, :].expand_as(P)  # |∂out| |V|ᵀ, since ∂out = 1
        dS = P * (A + (P * A).sum(-1, keepdim=True))  # ∂S = P ∘ (∂P − Σ P ∘ ∂P), without signs
        steps = (self.V.shape[-1] + sum(P.shape[-2:]) + 8) * U + 4 * self.unit
        error = dS * (2 * off + steps) + self.least
        error = error + self.flushed * (A + (P * A).sum(-1, keepdim=True))
        return (
            (error + steps * dS) @ self.K.abs() * abs(self.scale),
            (error + steps * dS).mT @ self.Q.abs() * abs(self.scale),
            ((off + steps) * P + self.least + self.flushed).sum(-2)[..., None].expand_as(self.V),
            error + steps * dS,
        )


def sum_to(x, shape):
    """What repeating and broadcasting did, undone."""
    if len(shape) > 2 and x.dim() == len(shape) and x.shape[-3] != shape[-3] and shape[-3] > 1:
        x = x.unflatten(-3, (shape[-3], -1)).sum(-3)
    return x.sum_to_size(shape)


@pytest.fixture
def recomputed():
    """Counts the calls that Fovea computes, and holds each to float64."""
    seen, failures = [], []

    def check(q, k, v, mask, causal, scale, got):
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            exact = Exact(q, k, v, mask, causal, scale)
            if got.numel() and not bool(((got.double() - exact.out).abs() <= exact.bound()).all()):
                failures.append((float(((got.double() - exact.out).abs() / exact.bound()).max()), q.shape, k.shape, v.shape, q.dtype, mask is not None, causal))
        seen.append(q.dtype)

    _operator.observe(check)
    yield seen
    _operator.observe(None)
    assert not failures


def outcome(function):
    try:
        return function(), None
    except Exception as error:  # noqa: BLE001
        return None, type(error).__name__


def same_kind(name, plain, patched):
    """Both are errors of one type, or tensors of the same shapes and types: these."""
    (expected, error), (got, patched_error) = plain, patched
    assert error == patched_error, name
    if error is not None:
        return []
    expected, got = (x if isinstance(x, (tuple, list)) else (x,) for x in (expected, got))
    pairs = [(e, g) for e, g in zip(expected, got) if isinstance(e, torch.Tensor)]
    assert all(e.shape == g.shape and e.dtype == g.dtype for e, g in pairs), name
    return pairs


# ---------------------------------------------------------------- the function


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
        keywords = sample.kwargs
        given = {"query": sample.input, "key": sample.args[0], "value": sample.args[1], "mask": keywords.get("attn_mask")}
        leaves = [x for x in given.values() if isinstance(x, torch.Tensor) and x.requires_grad]

        def call(sample=sample, leaves=leaves, gradient=gradient):
            out = F.scaled_dot_product_attention(sample.input, *sample.args, **sample.kwargs)
            return (out, *torch.autograd.grad(out.sum(), leaves)) if gradient and leaves else (out,)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = outcome(call)
            with fovea.torch.patch():
                patched = outcome(call)
        name = (i, dtype, [tuple(x.shape) for x in (sample.input, *sample.args)], keywords)
        pairs = same_kind(name, plain, patched)
        if not pairs:
            continue
        exact = Exact(*list(given.values())[:3], given["mask"], keywords.get("is_causal", False), keywords.get("scale"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            doubles = [x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in given.values()]
            out = F.scaled_dot_product_attention(*doubles[:3], **{**keywords, **({"attn_mask": doubles[3]} if given["mask"] is not None else {})})
            double_leaves = [x for x in doubles if isinstance(x, torch.Tensor) and x.requires_grad]
            right = (out, *torch.autograd.grad(out.sum(), double_leaves)) if gradient and leaves else (out,)
        by_name = dict(zip(given, exact.gradient_bounds()))
        bounds = [exact.bound()] + [by_name[x] for x, tensor in given.items() if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
        for (_, got), r, bound in zip(pairs, right, bounds):
            error = (got.detach().double() - r.detach()).abs()
            limit = sum_to(bound, r.shape) + ROUNDOFF[dtype] * r.detach().abs() + LEAST[dtype]
            assert bool((torch.nan_to_num(error, nan=0.0) <= limit).all()), (name, float((error / limit).nan_to_num(0.0).max()))
            assert bool((got.isnan() == r.isnan()).all()), name
    return n


def test_200_samples_of_the_function(recomputed):
    total = sum(1 for _ in sdpa_samples())
    n = run_samples(max(1, total // 200), recomputed)
    assert n >= min(total, 200) and len(recomputed) >= n // 4


@pytest.mark.pytorch
def test_all_samples_of_the_function(recomputed):
    assert run_samples(1, recomputed) > 200


# ---------------------------------------------------------------- modules that call it

MODULES = ("MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer", "Transformer", "TransformerEncoder", "TransformerDecoder")


def as_good(name, plain, patched, right, dtype):
    """What a module makes of Fovea's rounding, each of whose calls is held to its bound, beside what it makes of PyTorch's: of an error within four times that, and a few
    units in the last place, since neither rounding is the better one."""
    pairs = same_kind(name, plain, patched)
    right = right if isinstance(right, (tuple, list)) else (right,)
    for (e, g), r in zip(pairs, [x for x in right if isinstance(x, torch.Tensor)]):
        if not g.numel() or not g.is_floating_point():
            continue
        assert bool((g.isnan() == e.isnan()).all()), name
        largest = float(r.detach().nan_to_num(0.0).abs().max())
        error = float((g.detach().double() - r.detach()).nan_to_num(0.0).abs().max())
        allowed = 4 * float((e.detach().double() - r.detach()).nan_to_num(0.0).abs().max()) + 64 * ROUNDOFF[dtype] * max(largest, 1.0)
        assert error <= allowed, (name, error, allowed)


def doubled(x):
    return torch.utils._pytree.tree_map(lambda y: y.double() if isinstance(y, torch.Tensor) and y.is_floating_point() else y, x)


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
                right, _ = outcome(lambda: module.double()(*doubled(arguments), **doubled(keywords)))  # noqa: B023
            as_good((name, sample.desc), plain, patched, right, dtype)
            n += 1
    if not infos:
        pytest.skip("this PyTorch has no samples of it")
    assert n


@pytest.mark.pytorch
@pytest.mark.parametrize("way", ["scripted", "exported", "compiled", "nested"])
def test_encoders(way, recomputed):
    torch.manual_seed(0)
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, dropout=0.0), 2).eval()
    x = torch.randn(2, 7, 32)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[0, 5:] = True  # which makes the layers' input nested
    torch.backends.mha.set_fastpath_enabled(way == "nested")
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")

            def call():
                if way == "scripted":
                    return torch.jit.script(encoder)(x)
                if way == "exported":
                    return torch.export.export(encoder, (x,)).module()(x)
                if way == "compiled":
                    torch._dynamo.reset()
                    return torch.compile(encoder, backend="aot_eager")(x)
                return encoder(x, src_key_padding_mask=padding)

            plain = outcome(call)
            with fovea.torch.patch():
                patched = outcome(call)
            torch.backends.mha.set_fastpath_enabled(False)
            right = encoder.double()(x.double(), src_key_padding_mask=padding if way == "nested" else None)
            if way == "nested":  # which leaves what is padding 0
                right = right.masked_fill(padding[..., None], 0.0)
            as_good(way, plain, patched, right, torch.float32)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
