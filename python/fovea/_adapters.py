"""Layers of transformers that compute attention themselves, from ALiBi or a bias that Fovea has, and are in wide use: what they do instead where they are told to run on Fovea.

A layer that is told so becomes one of a class below, which inherits all but forward() from its own; told otherwise, it becomes what it was.
"""

from __future__ import annotations

import sys

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class BloomAttention:
    takes_booleans = True  # its masks, which it does not add to anything

    def forward(self, hidden_states, residual, alibi, attention_mask, layer_past=None, use_cache=False, output_attentions=False, **kwargs):
        query, key, value = self._reshape(self.query_key_value(hidden_states))
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        # slope·(the key's place among those that are no padding): for each row of scores as good as ALiBi's slope·distance.
        bias = alibi.view(query.shape[0], self.num_heads, 1, -1)
        out, weights = ALL_ATTENTION_FUNCTIONS["fovea"](
            self, query, key, value, attention_mask, dropout=_dropout(self.attention_dropout), scaling=self.inv_norm_factor, position_bias=bias, output_attentions=output_attentions
        )
        out = torch.nn.functional.dropout(self.dense(out.flatten(2)), p=self.hidden_dropout, training=self.training)
        return residual + out, weights


class MptAttention:
    takes_booleans = False  # the model makes a mask of what removes, as booleans, from numbers to add

    def forward(self, hidden_states, position_bias, cache=None, attention_mask=None, **kwargs):
        fused = self.Wqkv(hidden_states)
        if self.clip_qkv:
            fused = fused.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        query, key, value = (x.unflatten(2, (self.n_heads, self.head_dim)).transpose(1, 2) for x in fused.chunk(3, dim=2))
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx, kwargs=kwargs)
        if position_bias is not None:  # [Hq, 1, the longest text]: of the last key 0
            position_bias = position_bias[None, :, :, max(0, position_bias.shape[2] - key.shape[2]) :]
        mask = None if attention_mask is None else ~attention_mask
        dropout = self.attn_dropout_p if self.training else 0.0
        out, weights = ALL_ATTENTION_FUNCTIONS["fovea"](self, query, key, value, mask, dropout=dropout, scaling=self.softmax_scale, position_bias=position_bias)
        return self.out_proj(out.flatten(2)), weights


class MptBlock:
    def forward(self, *arguments, output_attentions=False, **keywords):
        if output_attentions:
            raise ValueError('MptAttention is not told that attentions are wanted: attn_implementation="eager" gives them')
        return super().forward(*arguments, output_attentions=False, **keywords)


class MPNetSelfAttention:
    takes_booleans = True

    def forward(self, hidden_states, attention_mask=None, position_bias=None, output_attentions=False, **kwargs):
        heads = (self.num_attention_heads, self.attention_head_size)
        query, key, value = (project(hidden_states).unflatten(-1, heads).transpose(1, 2) for project in (self.q, self.k, self.v))
        out, weights = ALL_ATTENTION_FUNCTIONS["fovea"](
            self, query, key, value, attention_mask, dropout=_dropout(self.dropout), scaling=self.attention_head_size**-0.5, is_causal=False, position_bias=position_bias,
            output_attentions=output_attentions,
        )  # fmt: skip
        out = self.o(out.flatten(2))
        return (out, weights) if output_attentions else (out,)


class FalconAttention:
    takes_booleans = True

    def forward(self, hidden_states, alibi, attention_mask, position_ids=None, layer_past=None, use_cache=False, output_attentions=False, position_embeddings=None, **kwargs):
        query, key, value = (x.transpose(1, 2) for x in self._split_heads(self.query_key_value(hidden_states)))
        if alibi is None:
            rotate = sys.modules[_original(type(self)).__module__].apply_rotary_pos_emb
            query, key = rotate(query, key, *position_embeddings)
        # Else the model has put ALiBi into the mask, and no weights are dropped without it.
        dropout = 0.0 if alibi is None else _dropout(self.attention_dropout)
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        out, weights = ALL_ATTENTION_FUNCTIONS["fovea"](self, query, key, value, attention_mask, dropout=dropout, output_attentions=output_attentions)
        return self.dense(out.flatten(2)), weights


def _dropout(layer: torch.nn.Dropout) -> float:
    return layer.p if layer.training else 0.0


_ADAPTERS = {
    ("transformers.models.bloom.modeling_bloom", "BloomAttention"): BloomAttention,
    ("transformers.models.falcon.modeling_falcon", "FalconAttention"): FalconAttention,
    ("transformers.models.mpnet.modeling_mpnet", "MPNetSelfAttention"): MPNetSelfAttention,
    ("transformers.models.mpt.modeling_mpt", "MptAttention"): MptAttention,
    ("transformers.models.mpt.modeling_mpt", "MptBlock"): MptBlock,
}
MODULES = {module for module, _ in _ADAPTERS}  # of transformers
_adapted: dict[type, type] = {}  # by the class that a layer has without Fovea


def _original(cls: type) -> type:
    return next((original for original, adapted in _adapted.items() if adapted is cls), cls)


def adapted(cls: type) -> type | None:
    """The class that layers of this one become on Fovea, or None."""
    if cls not in _adapted:
        adapter = _ADAPTERS.get((cls.__module__, cls.__name__))
        if adapter is None:
            return None
        name = f"On{cls.__name__}"
        _adapted[cls] = type(name, (adapter, cls), {"__module__": __name__, "__doc__": cls.__doc__})
    return _adapted[cls]


def __getattr__(name: str) -> type:  # pickle looks classes up by their names
    import importlib

    for module, original in _ADAPTERS:
        if name == f"On{original}":
            return adapted(getattr(importlib.import_module(module), original))
    raise AttributeError(name)


def adapt(module: torch.nn.Module, told: bool) -> None:
    """Makes a layer one that runs on Fovea, or what it was without."""
    cls = adapted(type(module)) if told else _original(type(module))
    if cls is not None and cls is not type(module):
        module.__class__ = cls
