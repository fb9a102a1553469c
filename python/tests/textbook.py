"""Textbook attention in float64: every rule of include/fovea/score.h, obvious and slow. What the tests compare with."""

import numpy as np


def attention(q, k, v, *, scale=None, causal=None, window=None, query_offset=None, q_lengths=None, kv_lengths=None, bias=None, mask=None,
              alibi_slopes=None, softcap=0.0, sinks=None, head_scales=None, bias_scales=None, key_ranges=None, function=None):
    """out, lse, weights of [B, H, T, d] arrays. function(scores, b, h, i, j) gives other scores, with i and j the positions."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    B, Hq, Tq, dk = q.shape
    Hkv, Tk = k.shape[1], k.shape[2]
    group = Hq // Hkv
    out = np.zeros((B, Hq, Tq, v.shape[3]))
    lse = np.full((B, Hq, Tq), -np.inf)
    weights = np.zeros((B, Hq, Tq, Tk))
    scale = 1 / np.sqrt(dk) if scale is None else scale
    full = (B, Hq, Tq, Tk)
    bias = None if bias is None else np.broadcast_to(np.asarray(bias).astype(np.float64), full)
    mask = None if mask is None else np.broadcast_to(np.asarray(mask), full)
    for b in range(B):
        q_len = Tq if q_lengths is None else int(q_lengths[b])
        k_len = Tk if kv_lengths is None else int(kv_lengths[b])
        if query_offset is not None:
            offset = int(np.broadcast_to(query_offset, B)[b])
        else:
            offset = k_len - q_len if causal == "bottom-right" else 0
        i, j = np.arange(q_len)[:, None] + offset, np.arange(k_len)[None, :]
        for h in range(Hq):
            s = scale * (1 if head_scales is None else float(head_scales[h])) * (q[b, h, :q_len] @ k[b, h // group, :k_len].T)
            if softcap:
                s = softcap * np.tanh(s / softcap)
            if alibi_slopes is not None:
                s = s - float(alibi_slopes[h]) * abs(i - j)
            visible = np.ones_like(s, dtype=bool)
            if bias is not None:
                stored = bias[b, h, :q_len, :k_len]
                visible &= stored != -np.inf
                s = s + np.where(visible, stored, 0) * (1 if bias_scales is None else float(bias_scales[h]))
            if function is not None:
                s = function(s, b, h, i, j)
                visible &= s != -np.inf
            if mask is not None:
                visible &= mask[b, h, :q_len, :k_len]
            if causal:
                visible &= j <= i
            if window is not None:
                left, right = window
                if left is not None and left >= 0:
                    visible &= j >= i - left
                if right is not None and right >= 0:
                    visible &= j <= i + right
            if key_ranges is not None:
                first, end = np.broadcast_to(key_ranges, (B, Tq, 2))[b, :q_len].T[..., None]
                visible &= (first <= j) & (j < end)
            s = np.where(visible, s, -np.inf)
            sink = -np.inf if sinks is None else float(sinks[h])
            m = np.maximum(s.max(axis=1, initial=-np.inf), sink)[:, None]
            safe = np.where(np.isinf(m), 0, m)
            p = np.where(visible, np.exp(s - safe), 0)
            total = p.sum(axis=1, keepdims=True) + np.exp(sink - safe)
            with np.errstate(divide="ignore"):
                lse[b, h, :q_len] = (np.log(total) + safe)[:, 0]
            p = np.divide(p, total, out=np.zeros_like(p), where=total > 0)
            weights[b, h, :q_len, :k_len] = p
            out[b, h, :q_len] = p @ v[b, h // group, :k_len]
    return out, lse, weights


# A result's largest error: that of f32 sums over scores of size `largest`, and for 16-bit types the rounding of P, V's products and of the output.
def tolerance(dtype, v, largest=0.0):
    largest_v = float(np.max(np.abs(np.asarray(v).astype(np.float64)), initial=0))
    epsilon = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[str(np.dtype(dtype))]
    return (max(1e-5, 8 * 2.0**-24 * largest) + 4 * epsilon) * largest_v + 1e-30
