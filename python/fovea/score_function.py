"""Scores changed by a function of the caller's, in the middle of attention: attention(…, score_function=function).

The function is compiled, and gets scores block by block, to be changed in place: that of row r and key c is
block.scores[r * block.row_stride + c * block.key_stride], of head block.heads[r], the query at position block.query_positions[r]
and the key at position block.first_key_position + c. −inf removes a pair. What it makes of a score depends on (score, sequence,
head, positions) alone. All its rules are in include/fovea/score_function.h. In C:

    void squash(void* context, const fovea_score_block* block)

and score_function is one of
    an integer, its address; a function pointer of ctypes (ctypes.CDLL(…).squash) or cffi (ffi.addressof(lib, "squash"));
    what numba.cfunc returns; whatever has an `address`
or a pair (function, context), where the context is None, an integer, a pointer of ctypes or cffi, or anything with a contiguous
buffer (a structure of ctypes, an array of NumPy): its memory. A plan keeps both alive. Many threads call the function at the same
time, without the GIL: a Python function is refused with TypeError. For a test, wrap one,

    @fovea.score_function_type
    def double(context, block):          # context: an integer or None; block.contents: a ScoreBlock
        b = block.contents
        for r in range(b.rows):
            for c in range(b.keys):
                b.scores[r * b.row_stride + c * b.key_stride] *= 2

which takes the GIL for each block: it computes what it should, a thousand times as slowly. What it raises is printed and lost.
"""

import ctypes

__all__ = ["ScoreBlock", "score_function_type"]


class ScoreBlock(ctypes.Structure):
    """fovea_score_block: scores of `rows` queries and `keys` keys of one sequence."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("scores", ctypes.POINTER(ctypes.c_float)),
        ("rows", ctypes.c_int64),
        ("keys", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("key_stride", ctypes.c_int64),
        ("heads", ctypes.POINTER(ctypes.c_int64)),
        ("query_positions", ctypes.POINTER(ctypes.c_int64)),
        ("first_key_position", ctypes.c_int64),
        ("sequence", ctypes.c_int64),
        ("offset", ctypes.c_int64),
    ]

    size: int
    scores: "ctypes._Pointer[ctypes.c_float]"
    rows: int
    keys: int
    row_stride: int
    key_stride: int
    heads: "ctypes._Pointer[ctypes.c_int64]"
    query_positions: "ctypes._Pointer[ctypes.c_int64]"
    first_key_position: int
    sequence: int
    offset: int


# fovea_score_function: of a Python function it makes one that C can call.
score_function_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ScoreBlock))
