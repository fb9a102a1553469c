"""The operator Attention of ONNX (ai.onnx, opsets 23 to 25), evaluated by Fovea.

    import fovea.onnx
    Y, present_key, present_value, _ = fovea.onnx.attention(Q, K, V, is_causal=1, q_num_heads=8, kv_num_heads=2)

    evaluator = onnx.reference.ReferenceEvaluator(model, new_ops=[fovea.onnx.operator()])
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core

__all__ = ["attention", "operator"]

_FLOAT, _FLOAT16, _DOUBLE, _BFLOAT16 = 1, 10, 11, 16  # onnx.TensorProto
_STAGES = {0: "scaled", 1: "softcapped", 2: "masked", 3: "weights"}


def _split_heads(x, name: str, heads: int | None):
    """[B, T, H·d] as [B, H, T, d]: a view."""
    if not heads or x.shape[2] % heads:
        raise ValueError(f"{name}.shape[2] = {x.shape[2]}, expected a multiple of the number of heads ({heads})")
    return x.reshape(x.shape[0], x.shape[1], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def attention(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    attn_mask: np.ndarray | None = None,
    past_key: np.ndarray | None = None,
    past_value: np.ndarray | None = None,
    nonpad_kv_seqlen: np.ndarray | None = None,
    *,
    scale: float | None = None,
    is_causal: int = 0,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    qk_matmul_output_mode: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
    qk_matmul_output: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Y, present_key, present_value and qk_matmul_output (None unless it is asked for) of NumPy arrays.

    Q is [B, Hq, Tq, dk] or [B, Tq, Hq·dk] with q_num_heads, K and V likewise with kv_num_heads; past_key and past_value [B, Hkv, P, d]. Y has Q's rank and type. The
    attributes have the operator's names, defaults and meaning. The softmax is float32 whatever softmax_precision asks for. Where it asks for double that is as good: results
    have the type of Q, float32 at most, and lie within 1e-5·max|V| of exact attention, for any number of keys, while scores, which are float32 products in either case, are
    no more exact than float32.

    present_key and present_value are new arrays where there is a past, else views of K and V. A mask that is shorter than the keys, which the operator allows, is
    copied if qk_matmul_output is asked for; nothing else is copied. Raises what fovea.attention raises. Thread-safe.
    """
    for name, x in (("Q", Q), ("K", K), ("V", V), ("attn_mask", attn_mask), ("past_key", past_key), ("past_value", past_value), ("nonpad_kv_seqlen", nonpad_kv_seqlen)):
        if isinstance(x, np.ma.MaskedArray):  # joined with others it would lose its mask here
            raise TypeError(f"{name} is a masked array, whose mask would be lost: use filled(), or attn_mask")
    if (past_key is None) != (past_value is None):
        raise ValueError("past_key and past_value: expected both or none")
    if past_key is not None and nonpad_kv_seqlen is not None:
        raise ValueError("nonpad_kv_seqlen and past_key are both given")
    if softmax_precision not in (None, 0, _FLOAT, _FLOAT16, _DOUBLE, _BFLOAT16):
        raise ValueError(f"softmax_precision = {softmax_precision}, expected that of a type of floats: {_FLOAT}, {_FLOAT16}, {_DOUBLE} or {_BFLOAT16}")
    if qk_matmul_output_mode not in _STAGES:
        raise ValueError(f"qk_matmul_output_mode = {qk_matmul_output_mode}, expected 0, 1, 2 or 3")
    if not Q.ndim == K.ndim == V.ndim or Q.ndim not in (3, 4):
        raise ValueError(f"Q, K and V have {Q.ndim}, {K.ndim} and {V.ndim} axes, expected 3 or 4 and the same")

    by_token = Q.ndim == 3
    if by_token:
        Q, K, V = _split_heads(Q, "Q", q_num_heads), _split_heads(K, "K", kv_num_heads), _split_heads(V, "V", kv_num_heads)
    if past_key is not None:
        K, V = np.concatenate((past_key, K), axis=2), np.concatenate((past_value, V), axis=2)
    present_key, present_value = K, V
    Tq, Tk = Q.shape[2], K.shape[2]

    # Where query 0 stands: behind the past, or so that the last query is the last valid key. What is -1 here is open in Fovea too.
    keywords = {"scale": scale, "softcap": softcap, "window": (left_window_size, right_window_size), "causal": "top-left" if is_causal else None}
    if past_key is not None:
        keywords["query_offset"] = past_key.shape[2]
    elif nonpad_kv_seqlen is not None:
        lengths = np.asarray(nonpad_kv_seqlen).reshape(-1)
        keywords["query_offset"] = lengths - Tq
        keywords["kv_lengths"] = lengths

    if attn_mask is not None:
        is_bool = attn_mask.dtype == np.bool_
        width = attn_mask.shape[-1]
        if width < Tk:  # keys that the mask does not reach are removed
            if qk_matmul_output:
                padding = [(0, 0)] * (attn_mask.ndim - 1) + [(0, Tk - width)]
                attn_mask = np.pad(attn_mask, padding, constant_values=False if is_bool else -np.inf)
            else:
                K, V, Tk = K[:, :, :width], V[:, :, :width], width
                if "kv_lengths" in keywords:
                    keywords["kv_lengths"] = np.minimum(keywords["kv_lengths"], width)
        keywords["mask" if is_bool else "bias"] = attn_mask

    if qk_matmul_output:
        keywords |= {"return_scores": True, "score_stage": _STAGES[qk_matmul_output_mode]}
        if qk_matmul_output_mode < 2 and "kv_lengths" in keywords:
            # Scores before masking are wanted of all keys, and what is behind a length has none: it becomes a mask.
            valid = np.arange(Tk) < keywords.pop("kv_lengths")[:, None, None, None]
            keywords["mask"] = valid & keywords["mask"] if "mask" in keywords else valid
    result = _core.attention(Q, K, V, out_layout="BTHD" if by_token else "BHTD", **keywords)
    Y, scores = result if qk_matmul_output else (result, None)
    if by_token:
        Y = Y.reshape(Y.shape[0], Y.shape[1], -1)
    return Y, present_key, present_value, None if scores is None else scores.astype(Q.dtype, copy=False)


def operator() -> type[Any]:
    """The class that onnx.reference.ReferenceEvaluator takes in new_ops, so that a graph's Attention nodes run on Fovea."""
    from onnx.reference.op_run import OpRun

    class Attention(OpRun):
        op_domain = ""

        def _run(self, *inputs, **attributes):
            names = self.onnx_node.output
            wanted = len(names) > 3 and bool(names[3])
            attributes = {name: value for name, value in attributes.items() if value is not None}
            return attention(*inputs, qk_matmul_output=wanted, **attributes)[: max(1, len(names))]

    return Attention
