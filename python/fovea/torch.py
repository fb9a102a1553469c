"""Fovea in PyTorch: a drop-in for torch.nn.functional.scaled_dot_product_attention on the CPU.

    import fovea.torch
    out = fovea.torch.scaled_dot_product_attention(q, k, v, is_causal=True)

    with fovea.torch.patch():            # models that call torch.nn.functional.scaled_dot_product_attention
        model(x)

What Fovea does not compute (gradients, dropout, other devices, float64, …) goes to PyTorch, with a FallbackWarning that says why, once for each reason.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from . import _core

__all__ = ["FallbackWarning", "patch", "scaled_dot_product_attention"]


class FallbackWarning(UserWarning):
    """PyTorch computes what Fovea was asked for."""


_torch_sdpa = F.scaled_dot_product_attention
_types = (torch.float32, torch.float16, torch.bfloat16)
_warned: set[str] = set()


def warn_once(reason: str) -> None:
    """One FallbackWarning for each reason in the life of the process."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"Fovea leaves attention to PyTorch: {reason}", FallbackWarning, stacklevel=4)


def threads() -> int:
    """How many threads calls on tensors use: no more than PyTorch would."""
    return min(_core.get_threads(), torch.get_num_threads())


def why_not(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False) -> str | None:
    """The reason why PyTorch must compute this, or None."""
    if dropout_p > 0.0:
        return "dropout is not supported"
    for x in (query, key, value):
        if not x.is_cpu:
            return f"tensors are on {x.device.type}, not on the CPU"
        if x.dtype not in _types:
            return f"elements are {x.dtype}, not float32, float16 or bfloat16"
        if x.layout is not torch.strided:
            return f"tensors are {x.layout}, not strided"
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad or (attn_mask is not None and attn_mask.requires_grad)):
        return "gradients are asked for (torch.no_grad() switches them off)"
    if query.dtype != key.dtype or query.dtype != value.dtype:
        return "query, key and value have different types"
    if attn_mask is not None:
        if is_causal:
            return "attn_mask and is_causal together are PyTorch's to judge"
        if attn_mask.dtype is not torch.bool and attn_mask.dtype not in _types:
            return f"the mask is {attn_mask.dtype}"
        if attn_mask.device.type != "cpu" or attn_mask.layout is not torch.strided:
            return "the mask is no dense tensor on the CPU"
    if torch.is_autocast_enabled("cpu") and query.dtype != torch.get_autocast_dtype("cpu"):
        return "autocast wants another type"
    return None


def _attention(query, key, value, attn_mask, is_causal, scale, softcap=0.0, sinks=None):
    """Any number of leading axes, which broadcast; GQA where key and value have fewer heads. The caller has asked why_not."""
    q, k, v = query.shape, key.shape, value.shape
    if len(q) > 4:
        # [a, …, z, H, T, d]: all axes before the heads together are the batch. reshape copies only where no view has these strides, as PyTorch does too.
        batch = torch.broadcast_shapes(q[:-3], k[:-3], v[:-3])
        flat = [x.expand(*batch, *x.shape[-3:]).reshape(-1, *x.shape[-3:]) for x in (query, key, value)]
        if attn_mask is not None and attn_mask.dim() > 3:
            attn_mask = attn_mask.expand(*batch, *attn_mask.shape[-3:]).reshape(-1, *attn_mask.shape[-3:])
        return _attention(*flat, attn_mask, is_causal, scale, softcap, sinks).reshape(*batch, *q[-3:-1], v[-1])
    if len(q) < 3:
        return _attention(query[None], key[None], value[None], attn_mask, is_causal, scale, softcap, sinks)[0]
    if k[-3] != v[-3] or len(q) == 4 and not q[0] == k[0] == v[0]:
        # Batches broadcast, and key and value get as many heads as the larger of them: views with stride 0.
        batch = torch.broadcast_shapes(q[:-3], k[:-3], v[:-3])
        heads = max(k[-3], v[-3])
        query = query.expand(*batch, *q[-3:])
        key, value = (x.expand(*batch, heads, *x.shape[-2:]) for x in (key, value))
    keywords = {}
    if attn_mask is not None:
        keywords["mask" if attn_mask.dtype is torch.bool else "bias"] = attn_mask
    if is_causal:
        keywords["causal"] = "top-left"
    if scale is not None:
        keywords["scale"] = scale
    if softcap:
        keywords["softcap"] = softcap
    if sinks is not None:
        keywords["sinks"] = sinks
    return _core.attention(query, key, value, threads=threads(), **keywords)


@torch.library.custom_op("fovea::scaled_dot_product_attention", mutates_args=(), device_types="cpu")
def _op(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    return _attention(query, key, value, attn_mask, is_causal, scale, softcap, sinks)


@_op.register_fake
def _(query, key, value, attn_mask, is_causal, scale, softcap=0.0, sinks=None):
    leading = query.shape[:-2]
    if query.shape[:-3] != key.shape[:-3]:
        leading = (*torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3]), query.shape[-3])
    return query.new_empty((*leading, query.shape[-2], value.shape[-1]))


def _heads_fit(query, key, value, enable_gqa) -> bool:
    """Whether the sizes are those that PyTorch accepts; it says itself what is wrong where they are not. (A value shorter than key it lets pass: Fovea refuses it.)"""
    q, k, v = query.shape, key.shape, value.shape
    if not len(q) == len(k) == len(v) >= 2 or q[-1] != k[-1]:
        return False
    if len(q) == 2:
        return True
    Hq, Hk, Hv = q[-3], k[-3], v[-3]
    if enable_gqa:
        return len(q) >= 4 and Hk == Hv > 0 and Hq % Hk == 0
    return (Hk == Hq or Hk == 1) and (Hv == Hq or Hv == 1)


def _route(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    compiling = torch.compiler.is_compiling()
    reason = why_not(query, key, value, attn_mask, dropout_p, is_causal)
    if reason is None and _heads_fit(query, key, value, enable_gqa):
        # Only the compiler needs an operator with a name; through it a call takes many times as long.
        if compiling:
            return _op(query, key, value, attn_mask, is_causal, scale)
        return _attention(query, key, value, attn_mask, is_causal, scale)
    out = _torch_sdpa(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    if not compiling:  # a graph cannot warn
        warn_once(reason or "the heads of query broadcast")
    return out


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """As torch.nn.functional.scaled_dot_product_attention, computed by Fovea.

    query [N, …, Hq, L, E], key [N, …, H, S, E], value [N, …, H, S, Ev] → [N, …, Hq, L, Ev]; float32, float16 or bfloat16 on the CPU, any strides. A bool attn_mask says
    which pairs attend, one of floats is added to the scores; both broadcast. is_causal aligns at the top left: query i sees keys j ≤ i. With enable_gqa Hq may be a
    multiple of H, and no head is repeated in memory.

    Sums and the softmax are float32. dropout_p > 0 raises ValueError; what else Fovea does not compute goes to PyTorch with a FallbackWarning.
    Thread-safe; uses no more threads than torch.get_num_threads().
    """
    if dropout_p > 0.0:
        raise ValueError(f"dropout_p = {dropout_p}, expected 0: Fovea has no dropout")
    return _route(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _patched(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    return _route(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


_patch_lock = threading.Lock()
_patch_depth = 0


@contextlib.contextmanager
def patch() -> Iterator[None]:
    """Routes torch.nn.functional.scaled_dot_product_attention to Fovea, in the whole process, until the block ends; may be nested.

    Modules that took the function by its name (from torch.nn.functional import …) before are not reached. Dropout, gradients, other devices and types go to PyTorch,
    each with one FallbackWarning.
    """
    global _patch_depth
    with _patch_lock:
        _patch_depth += 1
        F.scaled_dot_product_attention = _patched
    try:
        yield
    finally:
        with _patch_lock:
            _patch_depth -= 1
            if _patch_depth == 0:
                F.scaled_dot_product_attention = _torch_sdpa
