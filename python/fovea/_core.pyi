"""Types of the compiled module. What the functions do is in their docstrings: help(fovea.attention)."""

from _ctypes import CFuncPtr
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, SupportsFloat, SupportsIndex, TypedDict, TypeVar, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer, Unpack

class _SupportsDLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

class _Tensor(_SupportsDLPack, Protocol):  # torch.Tensor, where there is PyTorch
    requires_grad: bool

_Array = _SupportsDLPack | npt.NDArray[Any] | Buffer
_Codes = _Array | quantised
_ArrayT = TypeVar("_ArrayT", bound=npt.NDArray[Any] | _Tensor)
_Integer = SupportsIndex  # Python's, NumPy's, arrays of no axes
_Number = SupportsFloat | SupportsIndex
_Bool = bool | np.bool_
_Integers = _Array | list[int] | tuple[_Integer, ...]
_Floats = _Array | list[float] | list[int] | tuple[_Number, ...]
_Context = int | Buffer | npt.NDArray[Any] | None

class _Compiled(Protocol):  # what numba.cfunc returns
    @property
    def address(self) -> int: ...

_Function = int | CFuncPtr | _Compiled
_Layout = Literal["BHTD", "BTHD"] | None

class _Options(TypedDict, total=False):
    scale: _Number | None
    causal: Literal["top-left", "bottom-right", "top_left", "bottom_right"] | _Bool | None
    window: tuple[_Integer | None, _Integer | None] | None
    query_offset: _Integer | _Integers | None
    q_lengths: _Integers | None
    kv_lengths: _Integers | None
    key_offsets: _Integers | None
    ring: _Bool | None
    page_table: _Array | None
    page_begins: _Integers | None
    page_keys: _Integer | None
    cu_seqlens_q: _Integers | None
    cu_seqlens_k: _Integers | None
    bias: _Array | None
    mask: _Array | None
    mask_bits: _Array | None
    mask_shape: list[int] | tuple[_Integer, ...] | None
    block_map: tuple[_Array, _Integer, _Integer] | None
    parents: _Array | None
    key_ranges: _Array | None
    head_scales: _Floats | None
    bias_scales: _Floats | None
    score_function: _Function | tuple[_Function, _Context] | None
    k_scale: _Codes | None
    k_zero: _Array | None
    v_scale: _Codes | None
    v_zero: _Array | None
    k_group_stride: _Integer | None
    v_group_stride: _Integer | None
    alibi_slopes: _Floats | None
    softcap: _Number | None
    sinks: _Floats | None
    score_stage: Literal["scaled", "softcapped", "masked", "weights"] | None
    layout: _Layout
    out_layout: _Layout
    threads: _Integer | None

class _Choices(TypedDict, total=False):
    isa: str | None
    engine: Literal["auto", "tile", "row"] | None
    product: Literal["auto", "f32", "bf16"] | None

class _CallOptions(_Options, _Choices, total=False): ...

class _RunOptions(_Options, total=False):
    out: _Array | None
    lse: _Array | None
    weights: _Array | None
    scores: _Array | None
    return_lse: _Bool | None
    return_weights: _Bool | None
    return_scores: _Bool | None

class _PlanOptions(_RunOptions, _Choices, total=False):
    max_queries: _Integer | None
    max_keys: _Integer | None
    fixed_mask: _Bool | None
    fixed_bias: _Bool | None
    fixed_tables: _Bool | None

__version__: str

class UnsupportedError(ValueError): ...

_Type = Literal[
    "i8",
    "u8",
    "i4",
    "u4",
    "i4_high",
    "u4_high",
    "f8_e4m3fn",
    "f8_e5m2",
    "q8_0",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "iq4_nl",
    "f32_z4",
]

class quantised:
    def __init__(self, array: _Array, type: _Type) -> None: ...
    @property
    def array(self) -> Any: ...
    @property
    def type(self) -> str: ...

# Arrays that are made are of the library that q is of. Tuples with more than out and lse are typed as Any.
@overload
def attention(
    q: _ArrayT,
    k: _Codes,
    v: _Codes,
    *,
    out: _Array | None = None,
    return_lse: Literal[False] | None = None,
    return_weights: Literal[False] | None = None,
    return_scores: Literal[False] | None = None,
    lse: None = None,
    weights: None = None,
    scores: None = None,
    **options: Unpack[_CallOptions],
) -> _ArrayT: ...
@overload
def attention(
    q: _ArrayT,
    k: _Codes,
    v: _Codes,
    *,
    return_lse: Literal[True],
    out: _Array | None = None,
    return_weights: Literal[False] | None = None,
    return_scores: Literal[False] | None = None,
    lse: _Array | None = None,
    weights: None = None,
    scores: None = None,
    **options: Unpack[_CallOptions],
) -> tuple[_ArrayT, Any]: ...
@overload
def attention(
    q: _Array,
    k: _Codes,
    v: _Codes,
    *,
    out: _Array | None = None,
    return_lse: _Bool | None = None,
    return_weights: _Bool | None = None,
    return_scores: _Bool | None = None,
    lse: _Array | None = None,
    weights: _Array | None = None,
    scores: _Array | None = None,
    **options: Unpack[_CallOptions],
) -> Any: ...

def gradients(
    q: _Array,
    k: _Array,
    v: _Array,
    out: _Array,
    lse: _Array,
    dout: _Array,
    dlse: _Array | None = None,
    *,
    of: Sequence[str] | None = None,
    into: dict[str, Any] | None = None,
    accumulate: _Bool | None = None,
    **options: Unpack[_CallOptions],
) -> tuple[Any, ...]: ...

class Plan:
    def __init__(self, q: _Array, k: _Codes, v: _Codes, **options: Unpack[_PlanOptions]) -> None: ...
    def run(self, q: _Array, k: _Codes, v: _Codes, **options: Unpack[_RunOptions]) -> Any: ...
    def update(self, q: _Array, k: _Codes, v: _Codes, **options: Unpack[_RunOptions]) -> None: ...
    def workspace_bytes(self, threads: _Integer = 1) -> int: ...
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

def merge(parts: Iterable[tuple[_Array, _Array] | list[Any]], out: _Array | None = None, lse: _Array | None = None) -> tuple[Any, Any]: ...
def append(
    k: _Array,
    v: _Array | None = None,
    *,
    k_cache: _Codes,
    v_cache: _Codes | None = None,
    k_scale: _Array | None = None,
    k_zero: _Array | None = None,
    v_scale: _Array | None = None,
    v_zero: _Array | None = None,
    k_scale_fixed: _Bool | None = None,
    v_scale_fixed: _Bool | None = None,
    k_group_stride: _Integer | None = None,
    v_group_stride: _Integer | None = None,
    ring: _Bool | None = None,
    slots: _Integers | None = None,
    past_lengths: _Integers | None = None,
    page_table: _Array | None = None,
    page_begins: _Integers | None = None,
    page_keys: _Integer | None = None,
    lengths: _Integers | None = None,
    cu_seqlens: _Integers | None = None,
    layout: Literal["BHTD", "BTHD"] | None = None,
    threads: _Integer | None = None,
    isa: str | None = None,
) -> int: ...
def _cache_layout(
    pages: int, page: int, heads: int, dk: int, dv: int, k_type: str, v_type: str, k_group: int, v_group: int, k_scale_fixed: bool, v_scale_fixed: bool
) -> tuple[int, dict[str, tuple[str, tuple[int, ...], tuple[int, ...], int]]]: ...
def alibi_slopes(heads: _Integer, max_bias: _Number = 8.0) -> npt.NDArray[np.float32]: ...
def targets() -> list[str]: ...
def compiled_targets() -> list[str]: ...
def active_target() -> str: ...
def set_threads(threads: _Integer) -> None: ...
def get_threads() -> int: ...
