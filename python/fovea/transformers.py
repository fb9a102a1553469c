"""Fovea in Hugging Face transformers: attn_implementation="fovea".

    import fovea.transformers            # registers it
    model = AutoModel.from_pretrained(name, attn_implementation="fovea")

What a model's masks are made of reaches Fovea as what it is: causal, sliding windows and the position of the first query as numbers, padding on the right as lengths;
only other patterns (packed sequences, blocks of images, …) become matrices, and so does a mask that a model changes. Soft caps and sinks are taken too, and key and value
heads are not repeated.

A model is in one of three states when it is built: it runs on Fovea, and nothing is said; it is refused, ValueError, with a sentence that says why; or some of its layers
compute attention themselves, which one FallbackWarning names. What Fovea does not compute (gradients, dropout, float64, …) goes to PyTorch with a FallbackWarning,
once for each reason, soft caps and sinks included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils.output_capturing import _active_collector

from . import _core, _models, _operator

__all__ = ["attention_forward", "attention_mask", "register"]


# ---------------------------------------------------------------- the mask, once per forward pass


class Mask(torch.Tensor):
    """A mask [B, 1, Tq, Tk] that knows what it is made of, and has no elements until somebody looks: an operation on it gets what sdpa_mask or eager_mask would have given.
    Layers that hand it on untouched hand on the numbers in `keywords`."""

    keywords: dict[str, Any]
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, shape, dtype, device, keywords, make):
        mask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        mask.keywords, mask._make, mask._dense = keywords, make, None
        return mask

    def dense(self) -> torch.Tensor:
        if self._dense is None:
            self._dense = self._make()
        return self._dense

    def __getitem__(self, index):
        # Models cut masks to the keys that there are, which are all of them.
        whole = isinstance(index, tuple) and len(index) == 4 and all(
            isinstance(i, slice) and i.start in (None, 0) and i.step in (None, 1) and (i.stop is None or isinstance(i.stop, int) and i.stop >= n) for i, n in zip(index, self.shape)
        )  # fmt: skip
        return self if whole else super().__getitem__(index)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        def dense(x):
            return x.dense() if isinstance(x, Mask) else x

        return function(*torch.utils._pytree.tree_map(dense, arguments), **torch.utils._pytree.tree_map(dense, keywords or {}))


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
    dtype: torch.dtype = torch.float32,
    config: Any = None,
    **keywords: Any,
) -> torch.Tensor | None:
    """For AttentionMaskInterface: see transformers.masking_utils.sdpa_mask for the arguments. Gives a Mask, or a dense mask: for models that know booleans True for pairs that
    attend, for others numbers to add."""
    additive = config is not None and _models.wants_numbers(config)
    make_mask = masking_utils.eager_mask if additive else masking_utils.sdpa_mask
    given = dict(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset, mask_function=mask_function,
                 attention_mask=attention_mask, device=device, dtype=dtype, config=config)  # fmt: skip
    # A static cache's position is a tensor, so that compiled code need not know it; generate() then makes the masks ahead and hands them to the model once more.
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or isinstance(q_offset, torch.Tensor):
        return make_mask(**given, **keywords)
    keywords = {**keywords, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    parts = _parts(mask_function)
    if parts is None:
        return make_mask(**given, **keywords)

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
    return Mask((batch_size, 1, q_length, kv_length), dtype if additive else torch.bool, device, parts, lambda: make_mask(**given, **keywords))


# ---------------------------------------------------------------- attention, in each layer

# Keywords that layers pass and that say nothing about scores: what they mean is in the mask, or is for other kernels.
_WITHOUT_EFFECT = {"sliding_window", "deterministic", "position_ids", "cache_position", "cache", "past_key_values", "use_cache", "output_hidden_states",
                   "output_router_logits", "num_items_in_batch", "seq_idx", "layer_idx", "output_attentions", "return_dict", "position_embeddings"}  # fmt: skip
_PACKED = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}


def _check_keywords(keywords: dict, has_mask: bool) -> None:
    for name, value in keywords.items():
        if value is None or value is False or name in _WITHOUT_EFFECT or name in _PACKED and has_mask:
            continue
        if name in _PACKED:
            raise ValueError(f"{name}: packed sequences are for flash attention; for Fovea pass position_ids, from which transformers makes a mask")
        raise ValueError(f"the layer passes {name}, which Fovea does not know and must not ignore")


def _among(indices, mask, keys: int) -> torch.Tensor:
    """The mask of these keys and no others, as layers make it for eager attention."""
    if mask is None:
        raise ValueError("indices of keys without a mask, which says what is causal")
    mask = mask.dense() if isinstance(mask, Mask) else mask
    chosen = torch.zeros(*indices.shape[:2], keys, dtype=torch.bool, device=indices.device).scatter(-1, indices.long(), True).unsqueeze(1)
    return mask & chosen if mask.dtype is torch.bool else mask.masked_fill(~chosen, torch.finfo(mask.dtype).min)


def _wants_weights(keywords: dict) -> bool:
    if keywords.get("output_attentions"):
        return True
    if torch.compiler.is_compiling():
        return False
    collector = _active_collector.get()  # of models whose attentions are collected by hooks
    return collector is not None and any("attentions" in key for key in collector)


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
    sinks: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """For AttentionInterface: query [B, Hq, Tq, dk], key and value [B, Hkv, Tk, d] → [B, Tq, Hq, dv], and the weights where attentions are asked for.

    s_aux is a sink for each head [Hq], sinks one for each query [B, Hq, Tq, 1], indices [B, Tq, n] the keys that a query sees of those that the mask leaves. A keyword that would change the result and is not known here is a ValueError.
    """
    _check_keywords(kwargs, attention_mask is not None)
    if indices is not None:
        attention_mask = _among(indices, attention_mask, key.shape[2])
    weights = _wants_weights(kwargs)
    mask, numbers = attention_mask, {}
    if isinstance(attention_mask, Mask):
        if tuple(attention_mask.shape[2:]) == (query.shape[2], key.shape[2]):
            numbers = dict(attention_mask.keywords)
            mask = numbers.pop("mask", None)
        else:
            mask = attention_mask.dense()  # which may broadcast
    elif attention_mask is None:
        # What a missing mask means to PyTorch's function.
        if (is_causal if is_causal is not None else getattr(module, "is_causal", True)) and query.shape[2] > 1:
            numbers["causal"] = "top-left"

    reason = _operator.why_not(query, key, value, mask, dropout, scale=scaling) or _operator.gradients_asked(position_bias, s_aux, sinks)
    if reason is None and weights and (torch.compiler.is_compiling() or torch.jit.is_tracing()):
        reason = "weights are asked for in a graph"
    if reason is not None:
        _operator.warn_once_and_now(reason)
        mask = attention_mask.dense() if isinstance(attention_mask, Mask) else attention_mask
        if softcap is None and s_aux is None and sinks is None and not weights:
            return sdpa_attention_forward(module, query, key, value, mask, dropout, scaling, is_causal, position_bias=position_bias)
        return _by_parts(query, key, value, mask, "causal" in numbers and mask is None, dropout, scaling, softcap, s_aux, sinks, position_bias)

    bias = position_bias
    if mask is not None and mask.dtype is not torch.bool and bias is not None:
        bias, mask = bias + mask, None
    if s_aux is not None:
        s_aux = s_aux.detach().float()  # [Hq]: the one thing that may be converted
    causal = "causal" in numbers
    left, right = numbers.get("window", (None, None))
    offset = numbers.get("query_offset") or 0
    if query.shape[2] == 1 and offset == key.shape[2] - 1:
        causal = False  # the last query: all keys are before it
    if not causal and left is None and right is None:
        offset = 0
    lengths = numbers.get("kv_lengths")

    if weights or sinks is not None:
        return _with_more(query, key, value, mask, causal, scaling, softcap, s_aux, sinks, bias, (left, right), offset, lengths, weights)
    if bias is None and s_aux is None and lengths is None and not softcap and left is None and right is None and not offset:
        out = _operator.attention(query, key, value, mask, causal, scaling, True)
    else:
        out = _operator.extended(query, key, value, mask, causal, scaling, True, bias, s_aux, lengths, softcap=softcap or 0.0, window_left=left, window_right=right,
                                 query_offset=offset)  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


def _with_more(query, key, value, mask, causal, scaling, softcap, s_aux, sinks, bias, window, offset, lengths, weights):
    """The weights too; and sinks of each query, which share in a row as e^σ beside e^lse: all of it shrinks by sigmoid(lse − σ)."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        raise ValueError("sinks of each query cannot be compiled or traced")
    keywords = {"scale": scaling, "softcap": softcap, "sinks": s_aux, "window": window, "query_offset": offset, "kv_lengths": lengths, "causal": "top-left" if causal else None}
    if mask is not None:
        keywords["mask" if mask.dtype is torch.bool else "bias"] = mask
    if bias is not None:
        keywords["bias"] = bias
    out, lse, *shares = _core.attention(query, key, value, out_layout="BTHD", threads=_operator.threads(), return_lse=True, return_weights=weights, **keywords)
    shares = shares[0] if shares else None
    if sinks is not None:
        kept = torch.sigmoid(lse - sinks.detach().float().squeeze(-1))[..., None]  # [B, Hq, Tq, 1]
        out = (out * kept.transpose(1, 2)).to(query.dtype)
        shares = None if shares is None else shares * kept
    return out, None if shares is None else shares.to(query.dtype)


def _by_parts(query, key, value, mask, causal, dropout, scaling, softcap, s_aux, sinks, bias):
    """In PyTorch's operators, with all that Fovea has and PyTorch's function has not: for gradients, dropout, weights and float64."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (key, value))
    scores = query @ key.transpose(2, 3) * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if mask.dtype is torch.bool else scores + mask
    if s_aux is not None:
        sinks = s_aux.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    width = scores.shape[-1]
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    accumulated = torch.float64 if scores.dtype is torch.float64 else torch.float32
    weights = torch.softmax(scores, dim=-1, dtype=accumulated)[..., :width].to(query.dtype)
    if dropout > 0.0:
        weights = torch.nn.functional.dropout(weights, p=dropout)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def register(name: str = "fovea") -> None:
    """Makes attn_implementation=name known. Importing this module has done it for "fovea"."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    _models.watch(name)


register()
