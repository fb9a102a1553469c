"""Inputs of a workload as NumPy arrays, the same values for every library, dense in BHTD order."""

import math

import ml_dtypes
import numpy as np

from workloads import BYTES

DTYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
MAX_COPIES = 64


def copies_of(workload, dtype, rotate_bytes):
    """How many copies of K and V decode rotates over, so that they come from memory as in a model of many layers; else one."""
    if not workload.decode:
        return 1
    size = workload.B * workload.Hkv * workload.Tk * (workload.dk + workload.dv) * BYTES[dtype]
    return min(max(1, math.ceil(rotate_bytes / size)), MAX_COPIES)


class Tensors:
    """q [B, Hq, Tq, dk]; caches: (k [B, Hkv, Tk, dk], v [B, Hkv, Tk, dv]) with the same values; bias f32 [1, Hq, Tq, Tk] or [1, 1, 1, Tk];
    sinks [Hq]; slopes [Hq]."""

    def __init__(self, workload, dtype, rotate_bytes=0, seed=1):
        w, self.dtype = workload, dtype
        self.workload = w
        random = np.random.default_rng(seed)

        def normal(*shape):
            return random.standard_normal(shape, dtype=np.float32)

        self.q = normal(w.B, w.Hq, w.Tq, w.dk).astype(DTYPES[dtype])
        k = normal(w.B, w.Hkv, w.Tk, w.dk).astype(DTYPES[dtype])
        v = np.ascontiguousarray(k[..., : w.dv]) if w.values_in_keys else normal(w.B, w.Hkv, w.Tk, w.dv).astype(DTYPES[dtype])
        self.caches = [(k, v)]
        self.caches += [(k.copy(), v.copy()) for _ in range(copies_of(w, dtype, rotate_bytes) - 1)]
        self.slopes = 2.0 ** (-8 * (np.arange(w.Hq, dtype=np.float32) + 1) / w.Hq)
        self.sinks = normal(w.Hq) if w.sinks else None
        self.bias = None
        if w.bias == "dense":
            self.bias = normal(1, w.Hq, w.Tq, w.Tk)
        elif w.bias == "keys":
            self.bias = normal(1, 1, 1, w.Tk)
        elif w.bias == "distance":
            self.bias = self.distances()

    def distances(self):
        """What ALiBi adds, f32 [1, Hq, Tq, Tk]."""
        w = self.workload
        distance = np.abs(w.position(np.arange(w.Tq))[:, None] - np.arange(w.Tk)[None]).astype(np.float32)
        return -self.slopes[None, :, None, None] * distance[None, None]

    def mask(self):
        """The boolean mask alone, [1, 1, Tq, Tk], or [B, 1, 1, Tk] of padding; None without."""
        w = self.workload
        if not w.mask:
            return None
        if w.mask == "padding":
            return np.tile(w.mask_row(0), (w.B, 1, 1, 1))
        return np.stack([w.mask_row(i) for i in range(w.Tq)])[None, None]

    def visibility(self, causal_too):
        """For libraries without windows or a bottom-right causal mask: all that hides keys as one boolean mask, or None. With causal_too False the
        library itself hides what `causal` does."""
        w = self.workload
        if not w.window and not (causal_too and w.causal):
            return self.mask()
        return np.stack([w.visible(i) for i in range(w.Tq)])[None, None]

    def total_bias(self):
        """Bias and ALiBi, f32, or None."""
        if not self.workload.alibi:
            return self.bias
        return self.distances() if self.bias is None else self.bias + self.distances()
