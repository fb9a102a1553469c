"""A cache of keys and values: memory laid out once, read by attention() and written by append()."""

from typing import Any

import numpy as np

from ._core import _cache_layout, append, quantised

# Types of elements that NumPy has; all others are bytes of which attention() is told what they are.
_NUMPY = {"f32": np.float32, "f16": np.float16, "i8": np.int8, "u8": np.uint8}


class KVCache:
    """Keys and values of `pages` pages of `page` keys each, or of `pages` sequences with a capacity of `page`.

    heads, dk, dv   Hkv, and the sizes of a key and a value; dv is dk by default, 0: V lies within K
    k_type, v_type  'f32', 'f16', 'bf16', 'i8', 'u8', 'i4', 'u4', 'i4_high', 'u4_high', 'f8_e4m3fn', 'f8_e5m2', 'q8_0', 'q4_0', 'q4_1', 'q5_0', 'q5_1';
                    v_type is k_type by default
    k_group, v_group   channels that share a scale, where scales are written; all of a row by default
    k_scale, v_scale   fixed scales, arrays of four axes that belong to the caller: of 'i8', 'i4', 'i4_high' and f8
    ring            position p of a sequence lies in row p mod page

    Attributes: k and v, as attention() takes them; k_scale, k_zero, v_scale, v_zero, arrays or None; keywords, what attention() needs besides; memory, all bytes of the
    cache, [pages, bytes of a page]: a page is copied, moved or saved as one row.

        cache = fovea.KVCache(1000, 16, heads=8, dk=128, k_type="q8_0", v_type="u4")
        cache.append(k, v, slots=slots)
        out = fovea.attention(q, cache.k, cache.v, kv_lengths=lengths, **cache.keywords)
    """

    def __init__(
        self,
        pages: int,
        page: int,
        *,
        heads: int,
        dk: int,
        dv: int | None = None,
        k_type: str = "f32",
        v_type: str | None = None,
        k_group: int = 0,
        v_group: int = 0,
        k_scale: Any = None,
        v_scale: Any = None,
        ring: bool = False,
    ) -> None:
        dv = dk if dv is None else dv
        v_type = k_type if v_type is None else v_type
        size, tensors = _cache_layout(
            pages,
            page,
            heads,
            dk,
            dv,
            k_type,
            v_type,
            k_group,
            v_group,
            k_scale is not None and not k_type.startswith("f8"),
            v_scale is not None and not v_type.startswith("f8"),
        )
        whole = np.zeros(size + 64, np.uint8)
        first = -whole.ctypes.data % 64
        self._memory = whole[first : first + size]
        self.memory = self._memory.reshape(pages, -1) if pages else self._memory.reshape(0, 0)
        self.ring = ring
        arrays = {name: self._array(*place) for name, place in tensors.items()}
        self.k = arrays["k"]
        self.v = arrays.get("v")
        self.k_scale = arrays.get("k_scale") if k_scale is None else k_scale
        self.v_scale = arrays.get("v_scale") if v_scale is None else v_scale
        self.k_zero = arrays.get("k_zero")
        self.v_zero = arrays.get("v_zero")
        self._fixed = {"k_scale_fixed": k_scale is not None, "v_scale_fixed": v_scale is not None}
        for name, kind in (("k_scale_fixed", k_type), ("v_scale_fixed", v_type)):
            if kind.startswith("f8"):
                self._fixed[name] = False  # always are

    def _array(self, kind: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Any:
        *rows, units, unit_bytes = shape
        if kind == "bf16":
            import ml_dtypes

            dtype = np.dtype(ml_dtypes.bfloat16)
        else:
            dtype = np.dtype(_NUMPY.get(kind, np.uint8))
        shape = (*rows, units * unit_bytes // dtype.itemsize)
        array: Any
        if 0 in shape:  # no pages: NumPy takes no strides for them
            array = np.zeros(shape, dtype)
        else:
            array = np.ndarray(shape, dtype, self._memory, offset, (*strides, dtype.itemsize))
        return array if kind in _NUMPY or kind == "bf16" else quantised(array, kind)

    @property
    def nbytes(self) -> int:
        """Bytes of the cache; fixed scales are not among them."""
        return int(self._memory.nbytes)

    @property
    def keywords(self) -> dict[str, Any]:
        """Keywords of attention() that say how k and v lie: scales, zeros, ring."""
        names = ("k_scale", "k_zero", "v_scale", "v_zero")
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {**found, "ring": True} if self.ring else found

    def append(self, k: Any, v: Any = None, **where: Any) -> int:
        """Writes new keys and values: the keywords of fovea.append() that say where."""
        fixed = {name: True for name, is_fixed in self._fixed.items() if is_fixed}
        return append(k, v, k_cache=self.k, v_cache=self.v, **self.keywords, **fixed, **where)
