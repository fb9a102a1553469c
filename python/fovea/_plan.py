"""Plans that travel: pickle and copy keep what a plan was made of, and make it again."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core

_DTYPES = {"f32": "float32", "f16": "float16"}


def _tensor(shape: tuple[int, ...], dtype: str, by_token: bool) -> Any:
    """Of that shape and type in one element's memory: a plan looks at nothing else."""
    if dtype == "bf16":
        import ml_dtypes

        one = np.zeros((), ml_dtypes.bfloat16)
    else:
        one = np.zeros((), _DTYPES[dtype])
    x = np.broadcast_to(one, shape)
    return x.swapaxes(-3, -2) if by_token else x


def plan_of(tensors: tuple[tuple[tuple[int, ...], str], ...], keywords: dict[str, Any]) -> _core.Plan:
    by_token = keywords.get("layout") == "BTHD"
    return _core.Plan(*(_tensor(shape, dtype, by_token) for shape, dtype in tensors), **keywords)
