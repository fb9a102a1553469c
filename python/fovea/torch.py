"""Fovea in PyTorch: a drop-in for torch.nn.functional.scaled_dot_product_attention on the CPU.

    import fovea.torch
    out = fovea.torch.scaled_dot_product_attention(q, k, v, is_causal=True)

    with fovea.torch.patch():            # models that call torch.nn.functional.scaled_dot_product_attention
        model(x)

    with fovea.torch.enable_context_parallel(), fovea.torch.patch():      # ring attention over processes: docs/distributed.md
        with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
            model(x)

What Fovea does not compute (dropout, other devices, float64, …) goes to PyTorch, with a FallbackWarning that says why, once for each reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function

from . import _context_parallel, _core, _operator
from ._operator import FallbackWarning, threads, warn_once_and_now, why_not
from ._operator import attention as _op
from ._operator import warned as _warned
from ._patch import patched

__all__ = ["FallbackWarning", "enable_context_parallel", "patch", "scaled_dot_product_attention"]

_none_of_its_own = torch._C._disabled_torch_function_impl
_torch_sdpa = F.scaled_dot_product_attention


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

    Sums and the softmax are float32. dropout_p > 0 raises ValueError; what else Fovea does not compute (gradients, tensors that have attention of their own, …) goes to
    PyTorch with a FallbackWarning. To compilers, tracers and vmap it is the operator fovea::attention. Thread-safe; uses no more threads than torch.get_num_threads().
    """
    tensors = (query, key, value, attn_mask)
    if has_torch_function(tensors):
        if not any(type(x) is not torch.Tensor and x is not None and type(x).__torch_function__ is not _none_of_its_own for x in tensors):
            # They are nobody's, but somebody listens to all functions.
            return handle_torch_function(scaled_dot_product_attention, tensors, query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal,
                                         scale=scale, enable_gqa=enable_gqa)  # fmt: skip
        reason = "the tensors are of classes that have functions of their own (__torch_function__)"
    elif dropout_p > 0.0:
        raise ValueError(f"dropout_p = {dropout_p}, expected 0: Fovea has no dropout")
    else:
        if not (torch.is_grad_enabled() or forward_ad._current_level >= 0 or torch.compiler.is_compiling() or is_causal and attn_mask is not None):
            try:  # what it refuses is looked at below: to ask first would take as long as a small problem does
                return _op(query, key, value, attn_mask, is_causal, scale, enable_gqa)
            except (NotImplementedError, TypeError, ValueError):
                pass
        reason = _operator.why_not(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if reason is None:
            if _operator.shapes_fit(query, key, value, attn_mask, enable_gqa):
                return _op(query, key, value, attn_mask, is_causal, scale, enable_gqa)
            reason = _operator.ODD_SHAPES
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    warn_once_and_now(reason)
    return out


@contextlib.contextmanager
def patch() -> Iterator[None]:
    """Routes torch.nn.functional.scaled_dot_product_attention to Fovea, in the whole process, until the block ends; may be nested.

    Fovea becomes the kernel of the operators that PyTorch's function calls on the CPU, so whatever stands before them (autograd, autocast, vmap, tracers, compilers,
    subclasses) is PyTorch's. Backward passes of [B, H, T, d] with dk = dv are Fovea's, others PyTorch's. Dropout, float64 and the like go to PyTorch, each reason with one
    FallbackWarning, and so does what torch.nn.attention.sdpa_kernel asks for. RuntimeError where this PyTorch's operators are not those that Fovea knows.
    """
    with patched():
        yield


@contextlib.contextmanager
def enable_context_parallel() -> Iterator[None]:
    """Makes torch.distributed.tensor.experimental.context_parallel work on CPUs, in the whole process, until the block ends; may be nested.

    To be entered before context_parallel, in every process of the mesh. Within both, torch.nn.functional.scaled_dot_product_attention of query, key and value [B, H, T / N, d],
    shards of T tokens on N ranks, attends to the keys of all ranks, forward and backward; each rank computes with the kernel of its process, Fovea's under patch().
    fovea.torch.scaled_dot_product_attention, and PyTorch's by a name imported before, attend to the keys of the own shard alone.

    NotImplementedError for attn_mask and dropout_p > 0; RuntimeError where PyTorch's context parallelism, which is experimental there, is not what this was written for
    (it names what differs), and within context_parallel. Entering and leaving are thread-safe; context_parallel itself is not.
    """
    with _context_parallel.enabled():
        yield
