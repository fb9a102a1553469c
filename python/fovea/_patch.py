"""Fovea as a kernel of PyTorch's own operators, for as long as somebody wants it.

torch.nn.functional.scaled_dot_product_attention is one function in C++ that checks, casts and chooses, and calls one of two operators on the CPU:

    _scaled_dot_product_flash_attention_for_cpu   [B, H, T, d] with dk = dv and inner strides of 1. Has a derivative, whose kernel wants the logsumexp.
    _scaled_dot_product_attention_math            everything else. Made of other operators; its derivative is theirs.

Of the first Fovea is the kernel of the key CPU: the last step of dispatch, behind autograd, vmap, functionalisation, tracers and fake tensors. It is C++ by PyTorch's
stable C functions, so that a call makes no Python object; it cannot pass on exceptions of Python's, and does not need to there. The second has no last
step, so Fovea stands where it would be taken apart, behind all but autograd and what comes with real tensors, and calls the operator fovea::attention there, which
compilers and tracers record. A TorchFunctionMode would reach the same calls, but in one thread, at a cost for every operator of PyTorch, and ahead of subclasses.
The derivative of the first has an operator of its own, of which Fovea is the kernel too (_backward.py).
The choice between the two cannot be replaced (_fused_sdp_choice is not called through the dispatcher).
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

import torch
from torch.utils.flop_counter import flop_registry, sdpa_flop

from . import _backward, _core, _operator

_FLASH, _MATH = "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_attention_math"
# What Fovea's kernels are written for.
_SCHEMAS = {
    _FLASH: "(Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)",
    _MATH: "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0., bool is_causal=False, Tensor? dropout_mask=None, *, float? scale=None, "
    "bool enable_gqa=False) -> (Tensor, Tensor)",
    _backward.NAME: _backward.SCHEMA,
}
# The sets of dispatch keys of calls with plain tensors alone: nothing maps, traces, casts or wraps them.
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_PLAIN = tuple(keys.raw_repr() for keys in (_CPU, _CPU | torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)))
_operator._library.define(f"flash_of_pytorch{_SCHEMAS[_FLASH]}")
_operator._library.impl("flash_of_pytorch", lambda *arguments, **keywords: _flash_of_pytorch(*arguments, **keywords), "CPU", with_keyset=True)
_lock = threading.Lock()
_depth = 0
_library: torch.library.Library | None = None
_tested = False
_previous_flash = None  # the kernel that was there before: PyTorch's


# ---------------------------------------------------------------- kernels


def _flash_of_pytorch(keyset, query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    """What Fovea's kernel (src/flash_kernel.cc) does not compute."""
    if dropout_p > 0.0:
        reason = "dropout is not supported"
    elif query.dtype not in _operator.TYPES:
        reason = f"elements are {query.dtype}, not float32, float16 or bfloat16"
    elif scale is not None and not _operator.is_float32(scale):
        reason = _operator.ODD_SCALE
    else:
        reason = _operator.ODD_SHAPES
    _operator.warn_once(reason)
    return _previous_flash.call_boxed(keyset, query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)


def _math(keyset, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, dropout_mask=None, *, scale=None, enable_gqa=False):
    """(out, weights); the weights, which PyTorch's function drops, are NaN: nobody can take them for weights. Plain calls do not come here (src/math_kernel.cc)."""
    if dropout_mask is not None:
        reason = "dropout is not supported"
    elif not torch._C._get_flash_sdp_enabled():
        reason = "torch.nn.attention.sdpa_kernel asks for another kernel"
    elif torch._C._get_tracing_state() is not None or torch.compiler.is_exporting():
        reason = "what is exported is made of PyTorch's operators"
    else:
        reason = _operator.why_not(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if reason is None and not (key.shape[-2] == value.shape[-2] and _operator.shapes_fit(query, key, value, attn_mask, enable_gqa)):
            reason = _operator.ODD_SHAPES
    if reason is None:
        if keyset.raw_repr() in _PLAIN:  # between here and the kernel of fovea::attention there is nothing
            return _operator.on_cpu(query, key, value, attn_mask, is_causal, scale, enable_gqa, None, True)
        out = _operator.attention(query, key, value, attn_mask, is_causal, scale, enable_gqa)
        return out, _operator.no_weights(out, (*out.shape[:-1], key.shape[-2]))
    _operator.warn_once(reason)
    return torch.ops.aten._scaled_dot_product_attention_math.default.decompose(
        query, key, value, attn_mask, dropout_p, is_causal, dropout_mask, scale=scale, enable_gqa=enable_gqa
    )


# ---------------------------------------------------------------- putting them there, and away again


def _check_schemas() -> None:
    if not hasattr(torch.library, "get_kernel"):
        raise RuntimeError(f"fovea.torch.patch() needs torch.library.get_kernel, which PyTorch {torch.__version__} lacks")
    for name, expected in _SCHEMAS.items():
        operator = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
        found = "missing" if operator is None else str(operator.default._schema)
        if found != name + expected:
            raise RuntimeError(f"fovea.torch.patch() does not know the operators of PyTorch {torch.__version__}: {name} is {found}, expected {name}{expected}")


def _self_test() -> None:
    """One call of each kernel, through PyTorch's function, against float64."""
    from torch.utils._python_dispatch import _disable_current_modes

    sdpa = torch._C._nn.scaled_dot_product_attention
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad(), torch.autocast("cpu", enabled=False), warnings.catch_warnings():
        warnings.simplefilter("ignore", _operator.FallbackWarning)
        q, k, v = (torch.sin(torch.arange(2 * 3 * 5 * 8, dtype=torch.float32, device="cpu") * step).view(2, 3, 5, 8) for step in (0.7, 1.1, 1.3))
        causal = torch.ones(5, 5, dtype=torch.bool).tril()
        weights = torch.softmax((q.double() @ k.double().mT / 8**0.5).masked_fill(~causal, -torch.inf), -1)
        for name, value in ((_FLASH, v), (_MATH, v[..., :6])):
            runs = _core._kernel_runs()
            error = float((sdpa(q, k, value, is_causal=True).double() - weights @ value.double()).abs().max())
            if _core._kernel_runs() == runs:
                raise RuntimeError(f"fovea.torch.patch(): PyTorch {torch.__version__} does not call {name} where it should")
            if not error < 1e-5:
                raise RuntimeError(f"fovea.torch.patch(): through {name} of PyTorch {torch.__version__} a result is off by {error}")


def _forget_choices() -> None:
    """PyTorch's dispatcher in Python, which compilers use, remembers which kernel an operator has for a key."""
    for name in _SCHEMAS:
        getattr(torch.ops.aten, name.removeprefix("aten::")).default._dispatch_cache.clear()


def _install() -> None:
    global _library, _previous_flash, _tested
    if not _tested:
        _check_schemas()
    _previous_flash = torch.library.get_kernel(_FLASH, "CPU")
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings() if not _tested else contextlib.nullcontext():
            if not _tested:
                warnings.filterwarnings("ignore", message="(?s).*[Oo]verriding a previously registered kernel")  # which is the point; PyTorch says it once
            if not _tested:  # so that PyTorch's warning comes where it can be ignored
                first = torch.library.Library("aten", "IMPL")
                first.impl(_FLASH.removeprefix("aten::"), _flash_of_pytorch, "CPU", with_keyset=True)
                first._destroy()
            for key in ("CPU", "AutogradCPU"):
                library.impl(_MATH.removeprefix("aten::"), _core._math_kernel(_math, _PLAIN), key, with_keyset=True)
            _backward.take(library)
            _core._take_flash()
        _forget_choices()
        if not _tested:
            _self_test()
            _tested = True
    except BaseException:
        _core._leave_flash()
        library._destroy()
        _forget_choices()
        raise
    _library = library
    flop_registry.setdefault(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, sdpa_flop)


def _remove() -> None:
    global _library
    _core._leave_flash()
    _library._destroy()
    _library = None
    _forget_choices()
    flop_registry.pop(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, None)


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Fovea's kernels are PyTorch's until the last of these blocks ends."""
    global _depth
    with _lock:
        if _depth == 0:
            _install()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _remove()
