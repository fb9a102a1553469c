"""fovea::attention, an operator of PyTorch: torch.ops.fovea.attention. fovea.torch and fovea.transformers call it, so that whatever PyTorch puts between a call and a kernel
(tracers, compilers, subclasses, vmap, autocast) sees an operator with a name.

    fovea::attention(query, key, value, attn_mask, is_causal, scale, enable_gqa) -> Tensor
    fovea::attention.extended(…, bias, sinks, kv_lengths, *, softcap, window_left, window_right, query_offset) -> Tensor

query is [B, Hq, Tq, dk], key [B, Hkv, Tk, dk], value [B, Hkv, Tk, dv], with more axes before them or fewer; with enable_gqa Hq is a multiple of Hkv. attn_mask is bool (True = attend) or
added to the scores, as bias is; is_causal aligns at the top left, shifted by query_offset. The result's memory lies as query's does. Anything that Fovea does not compute
is an error, gradients among it: who may fall back to PyTorch asks why_not first.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable

import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import flop_registry, register_flop_formula

from . import _core

ODD_SHAPES = "the shapes are those of PyTorch's function alone"
ODD_SCALE = "the scale is no number of float32"
TYPES = (torch.float32, torch.float16, torch.bfloat16)


class FallbackWarning(UserWarning):
    """PyTorch computes what Fovea was asked for."""

    __module__ = "fovea.torch"


warned: set[str] = set()


def warn_once(reason: str) -> None:
    """One FallbackWarning for each reason in the life of the process."""
    if reason not in warned:
        warned.add(reason)
        warnings.warn(f"Fovea leaves attention to PyTorch: {reason}", FallbackWarning, stacklevel=4)


# Where a compiler traces the caller it is run then, and is no part of the graph.
warn_once_and_now = torch._dynamo.assume_constant_result(warn_once) if hasattr(torch, "_dynamo") else warn_once


def threads() -> int:
    """How many threads calls on tensors use: no more than PyTorch would."""
    return min(_core.get_threads(), torch.get_num_threads())


# ---------------------------------------------------------------- PyTorch's functions in C


def connect() -> None:
    """Gives the compiled module PyTorch's C functions, which this PyTorch must have."""
    library = ctypes.CDLL(torch._C.__file__)  # which has its symbols, and those of the libraries that it is linked with

    def address(name):
        return ctypes.cast(getattr(library, name, None), ctypes.c_void_p).value or 0

    if (missing := _core._connect(address)) is not None:
        raise RuntimeError(f"fovea.torch needs the C function {missing}, which PyTorch {torch.__version__} lacks")


# ---------------------------------------------------------------- what Fovea computes


def gradients_asked(*tensors: torch.Tensor | None) -> str | None:
    """Says so where backward() or forward-mode derivatives would want more than the result."""
    if torch.is_grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                return "gradients are asked for (torch.no_grad() switches them off)"
    if forward_ad._current_level >= 0:
        return "derivatives in forward mode are asked for"
    return None


def refuse_gradients(*tensors: torch.Tensor | None) -> None:
    if (reason := gradients_asked(*tensors)) is not None:
        raise ValueError(f"fovea::attention has no derivative: {reason}")


def why_not(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None) -> str | None:
    """The reason why PyTorch must compute this, or None."""
    if dropout_p > 0.0:
        return "dropout is not supported"
    if isinstance(scale, float) and not is_float32(scale):
        return ODD_SCALE
    autocast = torch.is_autocast_enabled("cpu")  # casts what is no float64 to one type
    for x in (query, key, value):
        if not x.is_cpu:
            return f"tensors are on {x.device.type}, not on the CPU"
        if x.dtype not in TYPES:
            return f"elements are {x.dtype}, not float32, float16 or bfloat16"
        if x.layout is not torch.strided or x.is_nested:
            return "tensors are sparse or nested"
        if x.dtype != query.dtype and not autocast:
            return "query, key and value have different types"
    if query.shape[-1] == 0 or value.shape[-1] == 0:
        return "the head size is 0"
    if attn_mask is not None:
        if is_causal:
            return "attn_mask and is_causal together are PyTorch's to judge"
        if attn_mask.dtype is not torch.bool and attn_mask.dtype not in TYPES:
            return f"the mask is {attn_mask.dtype}"
        if not attn_mask.is_cpu or attn_mask.layout is not torch.strided or attn_mask.is_nested:
            return "the mask is no dense tensor on the CPU"
    return gradients_asked(query, key, value, attn_mask)


def is_float32(x: float) -> bool:
    """Whether it is 0 or stays a number that is not."""
    return x == 0 or 2.0**-149 <= abs(x) < 2.0**128


def shapes_fit(query, key, value, attn_mask, enable_gqa) -> bool:
    """Whether the sizes are those that PyTorch accepts and Fovea computes; PyTorch says itself what is wrong where they are not. (A value shorter than key it lets pass, and
    reads what lies behind: that is left to Fovea to refuse.)"""
    q, k, v = query.shape, key.shape, value.shape
    if not len(q) == len(k) == len(v) >= 2 or q[-1] != k[-1]:
        return False
    if attn_mask is not None:
        mask, rank = attn_mask.shape, max(4, len(q))
        if not 1 <= len(mask) <= (rank if len(q) >= 4 else len(q)) or mask[-1] not in (1, k[-2]) or len(mask) > 1 and mask[-2] not in (1, q[-2]):
            return False
    if len(q) == 2:
        return True
    Hq, Hk, Hv = q[-3], k[-3], v[-3]
    if attn_mask is not None and len(attn_mask.shape) > 2 and attn_mask.shape[-3] not in (1, Hq):
        return False
    if enable_gqa:
        return len(q) >= 4 and Hk == Hv > 0 and Hq % Hk == 0
    return (Hk == Hq or Hk == 1) and (Hv == Hq or Hv == 1)


# ---------------------------------------------------------------- its kernels


def empty_result(query, shape):
    """Of that shape, for the result: as query lies, where PyTorch's own kernel gives that too, so that models which keep heads behind tokens get their layout back."""
    if query.dim() == 4 and tuple(query.shape) == tuple(shape) and query.stride(3) == 1:
        return torch.empty_like(query)
    return query.new_empty(shape)


def _shape(query, key, value):
    q, k, v = query.shape, key.shape, value.shape
    batch = torch.broadcast_shapes(q[:-3], k[:-3], v[:-3]) if len(q) > 3 else ()
    return (*batch, *q[max(0, len(q) - 3) : -1], v[-1])


def _simple_on_cpu(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    return on_cpu(query, key, value, attn_mask, is_causal, scale, enable_gqa)


def _extended_on_cpu(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, bias=None, sinks=None, kv_lengths=None, *, softcap=0.0,
                     window_left=None, window_right=None, query_offset=None):  # fmt: skip
    options = {"bias": bias, "sinks": sinks, "kv_lengths": kv_lengths, "softcap": softcap, "window": (window_left, window_right), "query_offset": query_offset}
    return on_cpu(query, key, value, attn_mask, is_causal, scale, enable_gqa, options)


def on_cpu(query, key, value, attn_mask, is_causal, scale, enable_gqa, options=None, wants_weights=False):
    """Now, on tensors in the CPU's memory; or the result and weights, of which there are none."""
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        refuse_gradients(query, key, value, attn_mask)
    if query.dim() in (3, 4):
        result = _core._operator(query, key, value, attn_mask, is_causal, scale, enable_gqa, threads(), wants_weights, options, None)
        if result is not None:
            return result
    if not shapes_fit(query, key, value, attn_mask, enable_gqa):
        raise ValueError(f"fovea::attention cannot take query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)} together (enable_gqa={enable_gqa})")
    shape = _shape(query, key, value)
    weights_shape = (*shape[:-1], key.shape[-2])
    out = target = empty_result(query, shape)
    if query.dim() > 4:
        # [a, …, z, H, T, d]: all axes before the heads together are the batch. reshape copies only where no view has these strides, as PyTorch does too.
        batch = shape[:-3]
        query, key, value = (x.expand(*batch, *x.shape[-3:]).reshape(-1, *x.shape[-3:]) for x in (query, key, value))
        if attn_mask is not None and attn_mask.dim() > 3:
            attn_mask = attn_mask.expand(*batch, *attn_mask.shape[-3:]).reshape(-1, *attn_mask.shape[-3:])
        target = out.view(-1, *shape[-3:])
    else:
        if query.dim() < 4:
            query, key, value, target = (x[(None,) * (4 - x.dim())] for x in (query, key, value, out))
        query, key, value = (x.expand(target.shape[0], *x.shape[1:]) for x in (query, key, value))
    heads = max(key.shape[1], value.shape[1])  # views with stride 0 where they differ
    key, value = (x.expand(x.shape[0], heads, *x.shape[2:]) for x in (key, value))
    _core._operator(query, key, value, attn_mask, is_causal, scale, True, threads(), False, options, target)
    return (out, no_weights(out, weights_shape)) if wants_weights else out


def no_weights(out, shape):
    """For who asks for weights that nobody computes: NaN, in no memory."""
    return out.new_full((1,), torch.nan).expand(shape)


connect()
if "_library" in globals():
    _library._destroy()  # of this module before it was loaded anew
_library = torch.library.Library("fovea", "FRAGMENT")
_SIMPLE = "Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, bool is_causal=False, float? scale=None, bool enable_gqa=False"
_library.define(f"attention({_SIMPLE}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.define(
    f"attention.extended({_SIMPLE}, Tensor? bias=None, Tensor? sinks=None, Tensor? kv_lengths=None, *, float softcap=0.0, SymInt? window_left=None, "
    "SymInt? window_right=None, SymInt? query_offset=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
attention, extended = torch.ops.fovea.attention.default, torch.ops.fovea.attention.extended

# For tests: what is called behind each run of one of Fovea's kernels, which this operator brings to Python from those that know no Python.
_library.define("observed(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale, Tensor out) -> ()")
_library.impl("observed", lambda *arguments: _observer(*arguments), "CPU")
_observer: Callable[..., object] = print


def observe(observer: Callable[..., object] | None) -> None:
    """observer(query, key, value, attn_mask, is_causal, scale, out), or None."""
    global _observer
    _observer = observer or print
    _core._observe(observer)


def _fake(query, key, value, *_, **__):
    refuse_gradients(query, key, value)
    if query.dtype not in TYPES or not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"fovea::attention cannot take {query.dtype}, {key.dtype} and {value.dtype}, expected one of float32, float16 and bfloat16")
    return empty_result(query, _shape(query, key, value))


def _autocast_of(operator):
    def autocast(query, key, value, *rest, **keywords):  # masks, sinks and the like may have types of their own
        to = torch.get_autocast_dtype("cpu")
        query, key, value = (x.to(to) if x.is_floating_point() and x.dtype is not torch.float64 else x for x in (query, key, value))
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            return operator(query, key, value, *rest, **keywords)

    return autocast


for _name, _kernel, _overload in (("attention", _simple_on_cpu, attention), ("attention.extended", _extended_on_cpu, extended)):
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _autocast_of(_overload), "AutocastCPU")
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")  # the kernels refuse what wants a gradient
    torch.library.register_fake(f"fovea::{_name}", _fake, lib=_library)


@torch.library.register_vmap("fovea::attention", lib=_library)
def _vmap(info, in_dims, query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """The mapped axis becomes the first of the axes before the heads, of which there may be any number. (The other overload is mapped call by call.)"""
    dims = dict(zip(("query", "key", "value", "attn_mask"), in_dims))
    rank = query.dim() - (dims["query"] is not None)

    def first(x, dim):
        return x[None].expand(info.batch_size, *[-1] * x.dim()) if dim is None else x.movedim(dim, 0)

    q, k, v = first(query, dims["query"]), first(key, dims["key"]), first(value, dims["value"])
    mask = attn_mask
    if mask is not None and dims["attn_mask"] is not None:
        mask = mask.movedim(dims["attn_mask"], 0)
        mask = mask.reshape(mask.shape[0], *[1] * (rank + 1 - mask.dim()), *mask.shape[1:])
    if rank == 2:  # [T, d] becomes [N, 1, T, d]
        q, k, v = q[:, None], k[:, None], v[:, None]
        mask = mask[:, None] if mask is not None and mask.dim() == 3 else mask
    out = attention(q, k, v, mask, is_causal, scale, enable_gqa)
    return (out[:, 0] if rank == 2 else out), 0


def flops(query, key, value, *_, out_val=None, out_shape=None, **__) -> int:
    """2·Hq·Tq·Tk·(dk + dv) for each sequence, masks not counted: as PyTorch counts its own."""
    *leading, Tq, dk = query
    count = 2 * Tq * key[-2] * (dk + value[-1])
    for size in leading:
        count *= size
    return count


if torch.ops.fovea.attention not in flop_registry:
    register_flop_formula(torch.ops.fovea.attention)(flops)
