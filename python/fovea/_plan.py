"""Plans that travel: pickle and copy keep what a plan was made of, and make it again."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core

_DTYPES = {"f32": "float32", "f16": "float16"}
# elements and bytes of a unit
_UNITS = {
    **dict.fromkeys(("i8", "u8", "f8_e4m3fn", "f8_e5m2"), (1, 1)),
    **dict.fromkeys(("i4", "u4", "i4_high", "u4_high"), (2, 1)),
    **{"q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "iq4_nl": (32, 18)},
}


def _tensor(shape: tuple[int, ...], dtype: str, by_token: bool) -> Any:
    """Of that shape and type in one element's memory, or one row's: a plan looks at nothing else."""
    if dtype in _UNITS:
        elements, size = _UNITS[dtype]
        row = np.zeros(shape[-1] // elements * size, np.uint8)
        x = np.broadcast_to(row, (*shape[:-1], len(row)))
        return _core.quantised(x.swapaxes(-3, -2) if by_token else x, dtype)
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
