"""Fovea as the kernel of the derivative of PyTorch's attention on the CPU, beside that of attention itself: see _patch.py."""

from __future__ import annotations

import torch

from . import _core, _operator

NAME = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
SCHEMA = (
    "(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, "
    "float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)"
)
_previous = None  # the kernel that was there before: PyTorch's


def take(library: torch.library.Library) -> None:
    """Makes it the kernel for as long as the library lives."""
    global _previous
    _previous = torch.library.get_kernel(NAME, "CPU")
    library.impl(NAME.removeprefix("aten::"), _kernel, "CPU", with_keyset=True)


def _like(x: torch.Tensor) -> torch.Tensor:
    """As PyTorch's own kernel lays gradients, which compilers rely on: heads behind tokens."""
    B, H, T, d = x.shape
    return x.new_empty((B, T, H, d)).transpose(1, 2)


def _kernel(keyset, grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None):
    tensors = (query, key, value, out, grad_out)
    plain = dropout_p == 0.0 and all(x.dtype in _operator.TYPES and x.dim() == 4 for x in tensors) and not (is_causal and attn_mask is not None)
    if not plain or scale is not None and not _operator.is_float32(scale):
        return _previous.call_boxed(keyset, grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    mask = {} if attn_mask is None else {"mask" if attn_mask.dtype is torch.bool else "bias": attn_mask}
    with torch.no_grad():
        into = {"q": _like(query), "k": _like(key), "v": _like(value)}
        return _core.gradients(query, key, value, out, logsumexp, grad_out, into=into, causal="top-left" if is_causal else None, scale=scale,
                               threads=_operator.threads(), **mask)  # fmt: skip
