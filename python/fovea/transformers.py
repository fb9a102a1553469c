"""Fovea in Hugging Face transformers: attn_implementation="fovea".

    import fovea.transformers            # registers it
    model = AutoModel.from_pretrained(name, attn_implementation="fovea")

What a model's masks are made of reaches Fovea as what it is: causal, sliding windows and the position of the first query as numbers, padding on the right as lengths;
only other patterns (packed sequences, blocks of images, …) become boolean matrices. Soft caps and sinks are taken too, and key and value heads are not repeated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from . import _core
from . import torch as _torch

__all__ = ["attention_forward", "attention_mask", "register"]


@dataclasses.dataclass
class Mask:
    """What a mask is made of. Travels through the model as the attribute `fovea` of a tensor [B, 1, 0, Tk]. To transformers that is a mask which is ready; it has no
    elements, so that nothing that a model might do to it can be taken for a mask."""

    q_length: int
    kv_length: int
    keywords: dict[str, Any]  # of fovea.attention
    dense: Callable[[], torch.Tensor]  # makes the same as [B, 1, Tq, Tk]


# ---------------------------------------------------------------- the mask, once per forward pass


def _closure(function) -> dict:
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ())}


def _made_by(function, maker) -> bool:
    return getattr(function, "__module__", "") == maker.__module__ and getattr(function, "__qualname__", "").startswith(maker.__qualname__ + ".<locals>.")


def _parts(function) -> dict | None:
    """causal and window of a mask function, or None when it is something else. Windows are those of fovea.attention."""
    if function is masking_utils.causal_mask_function:
        return {"causal": "top-left"}
    if function is masking_utils.bidirectional_mask_function:
        return {}
    if _made_by(function, masking_utils.sliding_window_overlay):
        return {"window": (_closure(function)["sliding_window"] - 1, -1)}  # j > i − w
    if _made_by(function, masking_utils.sliding_window_bidirectional_overlay):
        w = _closure(function)["sliding_window"]
        return {"window": (w, w)}
    if _made_by(function, masking_utils.and_masks):
        all_parts = {}
        for one in _closure(function)["mask_functions"]:
            parts = _parts(one)
            if parts is None or all_parts.keys() & parts.keys():
                return None
            all_parts |= parts
        return all_parts
    return None


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    **keywords: Any,
) -> torch.Tensor:
    """For AttentionMaskInterface: see transformers.masking_utils.sdpa_mask for the arguments. Gives a tensor with a Mask, or a dense mask."""
    keywords = {**keywords, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}

    def dense():
        return masking_utils.sdpa_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset, mask_function=mask_function,
            attention_mask=attention_mask, device=device, **keywords,
        )  # fmt: skip

    parts = _parts(mask_function)
    # A static cache's position is a tensor, so that compiled code need not know it; generate() then makes the masks ahead and hands them to the model once more.
    if parts is None or isinstance(q_offset, torch.Tensor) or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return dense()

    parts["query_offset"] = q_offset - kv_offset
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + kv_length].bool()
        lengths = padding.sum(dim=1)
        if bool((padding == (torch.arange(kv_length, device=device) < lengths[:, None])).all()):
            if bool((lengths != kv_length).any()):
                parts["kv_lengths"] = lengths
        else:
            parts["mask"] = padding[:, None, None, :]
    carrier = torch.empty(batch_size, 1, 0, kv_length, dtype=torch.bool, device=device)
    carrier.fovea = Mask(q_length, kv_length, parts, dense)
    return carrier


# ---------------------------------------------------------------- attention, in each layer


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """For AttentionInterface: query [B, Hq, Tq, dk], key and value [B, Hkv, Tk, d] → [B, Tq, Hq, dv], and the weights if output_attentions is set."""
    structure = getattr(attention_mask, "fovea", None)
    if structure is None and attention_mask is not None and attention_mask.shape[-2] == 0 != query.shape[2]:
        raise ValueError("the mask lost what it was made of: the model changes masks between transformers' mask functions and its layers")
    if structure is not None and (structure.q_length, structure.kv_length) != (query.shape[2], key.shape[2]):
        raise ValueError(
            f"the mask is for {structure.q_length} queries and {structure.kv_length} keys, but there are {query.shape[2]} and {key.shape[2]}"
        )

    reason = _torch.why_not(query, key, value, None if structure else attention_mask, dropout)
    if reason is None and position_bias is not None and position_bias.requires_grad and torch.is_grad_enabled():
        reason = "gradients are asked for (torch.no_grad() switches them off)"
    if reason is not None:
        if s_aux is not None:
            raise ValueError(f"Fovea cannot compute this layer ({reason}), and PyTorch's function has no sinks")
        if not torch.compiler.is_compiling():
            _torch.warn_once(reason)
        mask = structure.dense() if structure else attention_mask
        if softcap is not None:
            kwargs["softcap"] = softcap  # which it refuses
        return sdpa_attention_forward(module, query, key, value, mask, dropout, scaling, is_causal, position_bias=position_bias, **kwargs)

    if structure is not None and torch.compiler.is_compiling():
        attention_mask, structure = structure.dense(), None
    keywords = {"scale": scaling, "softcap": softcap}
    if structure is not None:
        keywords.update(structure.keywords)
    elif attention_mask is None:
        # What a missing mask means to PyTorch's function.
        if (is_causal if is_causal is not None else getattr(module, "is_causal", True)) and query.shape[2] > 1:
            keywords["causal"] = "top-left"
    else:
        keywords["mask" if attention_mask.dtype == torch.bool else "bias"] = attention_mask
    if position_bias is not None:
        if "bias" in keywords:
            position_bias = position_bias + keywords["bias"]
        keywords["bias"] = position_bias
    if s_aux is not None:
        keywords["sinks"] = s_aux.detach().float()  # [Hq]: the one thing that may be converted

    if torch.compiler.is_compiling():
        if "mask" in keywords and "bias" in keywords:
            keywords["bias"] = torch.where(keywords.pop("mask"), keywords["bias"], float("-inf"))
        mask = keywords.get("mask", keywords.get("bias"))
        out = _torch._op(query, key, value, mask, "causal" in keywords, scaling, softcap or 0.0, keywords.get("sinks"))
        return out.transpose(1, 2).contiguous(), None

    if kwargs.get("output_attentions"):
        out, weights = _core.attention(query, key, value, out_layout="BTHD", threads=_torch.threads(), return_weights=True, **keywords)
        return out, weights.to(query.dtype)
    return _core.attention(query, key, value, out_layout="BTHD", threads=_torch.threads(), **keywords), None


def register(name: str = "fovea") -> None:
    """Makes attn_implementation=name known. Importing this module has done it for "fovea"."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)


register()
