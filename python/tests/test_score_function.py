"""Functions of the caller's in the middle of attention, from C, ctypes, cffi and numba, against the same in float64."""

import ctypes
import gc
import shutil
import subprocess
import weakref
from pathlib import Path

import numpy as np
import pytest

import fovea
import textbook

INCLUDE = Path(__file__).parents[2] / "include"
FIELDS = [name for name, _ in fovea.ScoreBlock._fields_]
SOURCE = """
#include <fovea/score_function.h>

const size_t size = sizeof(fovea_score_block);
const size_t offsets[] = {%s};

typedef struct { float factor; int64_t reach; } decay_context;

void decay(void* context, const fovea_score_block* b) {
  const decay_context* c = context;
  for (int64_t r = 0; r < b->rows; ++r) {
    for (int64_t k = 0; k < b->keys; ++k) {
      float* s = b->scores + r * b->row_stride + k * b->key_stride;
      int64_t distance = b->query_positions[r] - b->first_key_position - k;
      if (distance < 0) distance = -distance;
      *s = *s * (float)(1 + b->heads[r]) + (float)b->sequence - c->factor * (float)distance;
      if (distance > c->reach) *s = -1.0f / 0.0f;
    }
  }
}

void halve(void* context, const fovea_score_block* b) {
  (void)context;
  for (int64_t r = 0; r < b->rows; ++r)
    for (int64_t k = 0; k < b->keys; ++k) b->scores[r * b->row_stride + k * b->key_stride] *= 0.5f;
}
""" % ", ".join(f"offsetof(fovea_score_block, {name})" for name in FIELDS)


class DecayContext(ctypes.Structure):
    _fields_ = [("factor", ctypes.c_float), ("reach", ctypes.c_int64)]


def decay(factor, reach):
    """What the function in C does."""
    return lambda s, b, h, i, j: np.where(abs(i - j) > reach, -np.inf, s * (1 + h) + b - factor * abs(i - j))


def halve(s, b, h, i, j):
    return s * 0.5


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None or not INCLUDE.exists():
        pytest.skip("no C compiler, or no header")
    folder = tmp_path_factory.mktemp("score_function")
    (folder / "functions.c").write_text(SOURCE)
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", f"-I{INCLUDE}", "-o", folder / "functions.so", folder / "functions.c"], check=True)
    return ctypes.CDLL(str(folder / "functions.so"))


def tensors(seed, B=2, Tq=21, Tk=40, d=8):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in ((B, 4, Tq, d), (B, 2, Tk, d), (B, 2, Tk, d))]


def close(got, expected, v):
    assert np.max(np.abs(got - expected)) <= textbook.tolerance(np.float32, v, largest=60)


def scores_of(block):
    """The scores of a block as an array [rows, keys] of NumPy, in place."""
    b = block.contents
    extent = (b.rows - 1) * b.row_stride + (b.keys - 1) * b.key_stride + 1
    flat = np.ctypeslib.as_array(b.scores, shape=(extent,))
    return np.lib.stride_tricks.as_strided(flat, (b.rows, b.keys), (4 * b.row_stride, 4 * b.key_stride))


def address_of(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def test_the_structure_is_that_of_the_header(compiled):
    assert ctypes.sizeof(fovea.ScoreBlock) == ctypes.c_size_t.in_dll(compiled, "size").value
    offsets = (ctypes.c_size_t * len(FIELDS)).in_dll(compiled, "offsets")
    assert list(offsets) == [getattr(fovea.ScoreBlock, name).offset for name in FIELDS]


@pytest.mark.parametrize("engine", ["tile", "row"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_function_of_c(compiled, engine, threads):
    q, k, v = tensors(1, Tq=130, Tk=300, d=16)
    context = DecayContext(0.25, 50)
    for keywords in ({}, {"causal": "bottom-right", "softcap": 3.0}, {"kv_lengths": [300, 70], "query_offset": 5}):
        expected, lse, weights = textbook.attention(q, k, v, function=decay(0.25, 50), **keywords)
        out, got_lse, got_weights = fovea.attention(q, k, v, score_function=(compiled.decay, context), engine=engine, threads=threads, return_lse=True,
                                                    return_weights=True, **keywords)
        close(out, expected, v)
        assert np.allclose(got_lse, lse, atol=1e-3) and np.allclose(got_weights, weights, atol=1e-4)


def test_every_kind_of_pointer(compiled):
    q, k, v = tensors(2)
    context = DecayContext(0.5, 9)
    expected = fovea.attention(q, k, v, score_function=(compiled.decay, context))
    close(expected, textbook.attention(q, k, v, function=decay(0.5, 9))[0], v)

    class Compiled:
        address = address_of(compiled.decay)

    as_array = np.frombuffer(bytes(context), np.uint8)
    for function in (Compiled.address, Compiled(), fovea.score_function_type(Compiled.address)):
        for pointer in (ctypes.addressof(context), ctypes.pointer(context), ctypes.cast(ctypes.pointer(context), ctypes.c_void_p), as_array, bytes(context)):
            assert np.array_equal(fovea.attention(q, k, v, score_function=(function, pointer)), expected)
    halved = textbook.attention(q, k, v, function=halve)[0]
    for value in (compiled.halve, address_of(compiled.halve), (compiled.halve, None)):
        close(fovea.attention(q, k, v, score_function=value), halved, v)


def test_pointers_of_cffi(compiled):
    cffi = pytest.importorskip("cffi")
    ffi = cffi.FFI()
    q, k, v = tensors(3)
    context = DecayContext(0.5, 9)
    expected = fovea.attention(q, k, v, score_function=(compiled.decay, context))
    function = ffi.cast("void (*)(void *, const void *)", address_of(compiled.decay))
    ffi.cdef("typedef struct { float factor; int64_t reach; } decay_context;")
    for pointer in (ffi.new("decay_context *", [0.5, 9]), ffi.new("decay_context[1]", [[0.5, 9]]), context):
        assert np.array_equal(fovea.attention(q, k, v, score_function=(function, pointer)), expected)
    with pytest.raises(TypeError, match="CData"):
        fovea.attention(q, k, v, score_function=ffi.new("int *"))
    with pytest.raises(ValueError, match="null"):
        fovea.attention(q, k, v, score_function=ffi.cast("void (*)(void *, const void *)", 0))


def test_a_function_of_numba():
    numba = pytest.importorskip("numba")
    from numba.extending import intrinsic

    block = numba.types.Record.make_c_struct([(name, numba.types.int64) for name in FIELDS])  # with pointers as numbers

    @intrinsic
    def floats_at(typing_context, address):
        def code(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return numba.types.CPointer(numba.types.float32)(address), code

    @numba.cfunc(numba.types.void(numba.types.voidptr, numba.types.CPointer(block)))
    def double(context, pointer):
        b = numba.carray(pointer, 1)[0]
        scores = numba.carray(floats_at(b.scores), (b.rows - 1) * b.row_stride + (b.keys - 1) * b.key_stride + 1)
        for r in range(b.rows):
            for c in range(b.keys):
                scores[r * b.row_stride + c * b.key_stride] *= 2

    q, k, v = tensors(4)
    close(fovea.attention(q, k, v, score_function=double), textbook.attention(q, k, v, function=lambda s, *_: 2 * s)[0], v)


def test_a_python_function_behind_ctypes():
    q, k, v = tensors(5)
    seen = set()

    @fovea.score_function_type
    def shift(context, block):
        b = block.contents
        assert context is None and b.size >= ctypes.sizeof(fovea.ScoreBlock)
        heads, positions = b.heads[: b.rows], np.array(b.query_positions[: b.rows])
        seen.update((b.sequence, head) for head in heads)
        keys = b.first_key_position + np.arange(b.keys)
        scores_of(block)[:] -= 0.1 * abs(positions[:, None] - keys) * (1 + np.array(heads)[:, None])

    for engine in ("tile", "row"):
        seen.clear()
        out = fovea.attention(q, k, v, score_function=shift, engine=engine, threads=1)
        close(out, textbook.attention(q, k, v, function=lambda s, b, h, i, j: s - 0.1 * abs(i - j) * (1 + h))[0], v)
        assert seen == {(b, h) for b in range(2) for h in range(4)}


def test_threads_and_the_gil():
    """Threads that compute take the GIL for each block, which their caller does not hold."""
    q, k, v = tensors(6, Tq=300, Tk=400, d=32)

    @fovea.score_function_type
    def triple(context, block):
        scores_of(block)[:] *= 3

    expected = fovea.attention(q, k, v, score_function=triple, threads=1)
    close(expected, textbook.attention(q, k, v, function=lambda s, *_: 3 * s)[0], v)
    for _ in range(5):
        assert np.array_equal(fovea.attention(q, k, v, score_function=triple, threads=4), expected)


def test_plans_take_other_functions(compiled):
    q, k, v = tensors(7)
    plan = fovea.Plan(q, k, v, score_function=compiled.halve)
    close(plan.run(q, k, v), textbook.attention(q, k, v, function=halve)[0], v)
    for factor, reach in ((0.5, 9), (0.0, 3)):
        out = plan.run(q, k, v, score_function=(compiled.decay, DecayContext(factor, reach)))
        close(out, textbook.attention(q, k, v, function=decay(factor, reach))[0], v)
    close(plan.run(q, k, v), textbook.attention(q, k, v, function=halve)[0], v)
    with pytest.raises(ValueError, match="function"):
        plan.run(q, k, v, score_function=None)
    with pytest.raises(ValueError, match="function"):
        fovea.Plan(q, k, v).run(q, k, v, score_function=compiled.halve)
    plan.update(q, k, v, score_function=(compiled.decay, DecayContext(0.5, 9)))
    close(plan.run(q, k, v), textbook.attention(q, k, v, function=decay(0.5, 9))[0], v)


def test_plans_keep_functions_and_contexts(compiled):
    q, k, v = tensors(8)
    context = DecayContext(0.5, 9)
    memory = np.frombuffer(bytes(context), np.uint8).copy()
    halving = fovea.score_function_type(address_of(compiled.halve))
    plans = [fovea.Plan(q, k, v, score_function=value) for value in ((compiled.decay, context), (compiled.decay, memory), halving)]
    kept = [weakref.ref(x) for x in (context, memory, halving)]
    del context, memory, halving
    gc.collect()
    assert all(reference() is not None for reference in kept)
    expected = textbook.attention(q, k, v, function=decay(0.5, 9))[0]
    for plan in plans[:2]:
        close(plan.run(q, k, v), expected, v)
    plans[2].update(q, k, v, score_function=(compiled.decay, DecayContext(0.5, 9)))
    close(plans[2].run(q, k, v), expected, v)
    del plan
    plans.clear()
    gc.collect()
    assert all(reference() is None for reference in kept)
