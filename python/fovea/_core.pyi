"""Types of the compiled module. What the functions do is in their docstrings: help(fovea.attention)."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt

class _SupportsDLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

_Array = _SupportsDLPack | npt.NDArray[Any] | memoryview
_ArrayT = TypeVar("_ArrayT")
_Integers = _Array | Sequence[int]
_Floats = _Array | Sequence[float]
_Causal = Literal["top-left", "bottom-right", "top_left", "bottom_right"] | bool | None
_Stage = Literal["scaled", "softcapped", "masked", "weights"]

__version__: str

class UnsupportedError(ValueError): ...

# A tuple of out, lse, weights and scores, as far as they were asked for, is typed as Any.
@overload
def attention(q: _ArrayT, k: _Array, v: _Array) -> _ArrayT: ...
@overload
def attention(
    q: _ArrayT,
    k: _Array,
    v: _Array,
    *,
    out: _Array | None = None,
    scale: float | None = None,
    causal: _Causal = None,
    window: tuple[int | None, int | None] | None = None,
    query_offset: int | _Integers | None = None,
    q_lengths: _Integers | None = None,
    kv_lengths: _Integers | None = None,
    cu_seqlens_q: _Integers | None = None,
    cu_seqlens_k: _Integers | None = None,
    bias: _Array | None = None,
    mask: _Array | None = None,
    mask_bits: _Array | None = None,
    mask_shape: Sequence[int] | None = None,
    block_map: tuple[_Array, int, int] | None = None,
    parents: _Array | None = None,
    alibi_slopes: _Floats | None = None,
    softcap: float | None = None,
    sinks: _Floats | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
    return_scores: bool = False,
    score_stage: _Stage = "masked",
    lse: _Array | None = None,
    weights: _Array | None = None,
    scores: _Array | None = None,
    layout: Literal["BHTD", "BTHD"] = "BHTD",
    out_layout: Literal["BHTD", "BTHD"] | None = None,
    threads: int | None = None,
    isa: str | None = None,
    engine: Literal["auto", "tile", "row"] | None = None,
    product: Literal["auto", "f32", "bf16"] | None = None,
) -> Any: ...

class Plan:
    def __init__(
        self,
        q: _Array,
        k: _Array,
        v: _Array,
        *,
        out: _Array | None = None,
        scale: float | None = None,
        causal: _Causal = None,
        window: tuple[int | None, int | None] | None = None,
        query_offset: int | _Integers | None = None,
        q_lengths: _Integers | None = None,
        kv_lengths: _Integers | None = None,
        cu_seqlens_q: _Integers | None = None,
        cu_seqlens_k: _Integers | None = None,
        bias: _Array | None = None,
        mask: _Array | None = None,
        mask_bits: _Array | None = None,
        mask_shape: Sequence[int] | None = None,
        block_map: tuple[_Array, int, int] | None = None,
        parents: _Array | None = None,
        alibi_slopes: _Floats | None = None,
        softcap: float | None = None,
        sinks: _Floats | None = None,
        return_lse: bool = False,
        return_weights: bool = False,
        return_scores: bool = False,
        score_stage: _Stage = "masked",
        lse: _Array | None = None,
        weights: _Array | None = None,
        scores: _Array | None = None,
        layout: Literal["BHTD", "BTHD"] = "BHTD",
        out_layout: Literal["BHTD", "BTHD"] | None = None,
        threads: int | None = None,
        isa: str | None = None,
        engine: Literal["auto", "tile", "row"] | None = None,
        product: Literal["auto", "f32", "bf16"] | None = None,
        max_queries: int | None = None,
        max_keys: int | None = None,
        fixed_mask: bool = False,
    ) -> None: ...
    def run(self, q: _Array, k: _Array, v: _Array, **keywords: Any) -> Any: ...
    def update(self, q: _Array, k: _Array, v: _Array, **keywords: Any) -> None: ...
    def workspace_bytes(self, threads: int = 1) -> int: ...
    @property
    def isa(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def product(self) -> str: ...
    @property
    def flops(self) -> float: ...
    @property
    def kv_bytes(self) -> float: ...
    @property
    def pairs(self) -> float: ...
    @property
    def tasks(self) -> int: ...

def merge(parts: Iterable[tuple[_Array, _Array]], out: _Array | None = None, lse: _Array | None = None) -> tuple[Any, Any]: ...
def alibi_slopes(heads: int, max_bias: float = 8.0) -> npt.NDArray[np.float32]: ...
def targets() -> list[str]: ...
def compiled_targets() -> list[str]: ...
def active_target() -> str: ...
def set_threads(threads: int) -> None: ...
def get_threads() -> int: ...
