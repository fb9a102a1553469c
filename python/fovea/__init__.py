"""Fovea: scaled dot-product attention for CPUs, on NumPy arrays and PyTorch tensors without copying them.

    import numpy as np, fovea
    q = k = v = np.random.default_rng(0).standard_normal((1, 8, 1024, 64), dtype=np.float32)
    out = fovea.attention(q, k, v, causal="top-left")

fovea.torch, fovea.transformers and fovea.onnx put it where models are; they are imported by their own names.
"""

from ._cache import KVCache
from ._core import (
    Plan,
    UnsupportedError,
    active_target,
    alibi_slopes,
    append,
    attention,
    compiled_targets,
    get_threads,
    gradients,
    merge,
    quantised,
    set_threads,
    targets,
)
from ._core import __version__ as __version__
from .score_function import ScoreBlock, score_function_type

__all__ = [
    "KVCache",
    "Plan",
    "ScoreBlock",
    "UnsupportedError",
    "active_target",
    "alibi_slopes",
    "append",
    "attention",
    "compiled_targets",
    "get_threads",
    "gradients",
    "merge",
    "quantised",
    "score_function_type",
    "set_threads",
    "targets",
]
