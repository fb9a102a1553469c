"""Outputs that share memory with anything else of a call are refused, and those that only lie between inputs are not."""

import ml_dtypes
import numpy as np
import pytest

import fovea


def random(*shape):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_in_place(name):
    tensors = {n: random(1, 2, 6, 8) for n in "qkv"}
    before = tensors[name].copy()
    view = tensors[name].view()  # another object, the same memory
    for out in (view, view[:, ::-1, :, ::-1], view.reshape(1, 6, 2, 8).transpose(0, 2, 1, 3)):
        with pytest.raises(ValueError, match=f"out and {name} overlap"):
            fovea.attention(*tensors.values(), out=out)
        with pytest.raises(ValueError, match=f"out and {name} overlap"):
            fovea.Plan(*tensors.values()).run(*tensors.values(), out=out)
    assert np.array_equal(tensors[name], before)


def test_a_plan_is_no_run():
    q = random(1, 2, 6, 8)
    plan = fovea.Plan(q, q, q, out=q)  # keeps out, and not q
    x = q.copy()
    expected = fovea.attention(x, x, x)
    assert plan.run(x, x, x) is q and np.array_equal(q, expected)
    with pytest.raises(ValueError, match="out and q overlap"):
        plan.run(q, x, x)


MEMORY = np.zeros(32, np.float32)
MATRIX, LSE = MEMORY.reshape(1, 2, 4, 4), MEMORY[:8].reshape(1, 2, 4)


@pytest.mark.parametrize(
    "output, array, name, other",
    [
        ("weights", MATRIX, "bias", MATRIX[0]),
        ("scores", MATRIX, "mask", MEMORY.view(bool)[16:32].reshape(4, 4)),
        ("lse", LSE, "block_map", (MEMORY.view(bool)[31:32].reshape(1, 1), 4, 4)),
        ("lse", LSE, "sinks", MEMORY[7:9]),
        ("lse", LSE, "alibi_slopes", MEMORY[7:5:-1]),
        ("lse", LSE, "parents", MEMORY.view(np.int64)[:4].reshape(1, 4)),
        ("lse", LSE, "q_lengths", MEMORY.view(np.int64)[3:4]),
        ("lse", LSE, "kv_lengths", MEMORY.view(np.int32)[7:8]),
        ("lse", LSE, "query_offset", MEMORY.view(np.int64)[3:4]),
        ("lse", LSE, "cu_seqlens_q", MEMORY.view(np.int32)[7:12:4]),
        ("lse", LSE, "cu_seqlens_k", MEMORY.view(np.int32)[7:12:4]),
        ("lse", LSE, "weights", MATRIX),
        ("weights", MATRIX, "scores", MATRIX),
    ],
)
def test_every_output_and_every_input(output, array, name, other):
    q = random(1, 2, 4, 8)
    MEMORY.view(np.int32)[11] = 4 if "cu_seqlens" in name else 0  # their last number: all four rows
    with pytest.raises(ValueError, match=f"{output} and {name} overlap"):
        fovea.attention(q, q, q, **{output: array, name: other})


def test_mask_bits_are_bytes():
    """16 keys of 1 query are two bytes; the output begins behind them, and then in them."""
    memory = np.full(64, 255, np.uint8)
    q, k = random(1, 1, 1, 4), random(1, 1, 16, 4)
    bits = memory[2:4].reshape(1, 2)
    out = memory[4:20].view(np.float32).reshape(1, 1, 1, 4)
    assert np.array_equal(fovea.attention(q, k, k, mask_bits=bits, out=out), fovea.attention(q, k, k))
    with pytest.raises(ValueError, match="out and mask_bits overlap"):
        fovea.attention(q, k, k, mask_bits=memory[3:5].reshape(1, 2), out=out)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("axis", [1, 2, 3, 4])
def test_between_the_inputs(axis, dtype):
    """q, k, v and out in one buffer, row by row, head by head, or element by element."""
    shape = [2, 33, 3, 16]
    shape.insert(axis, 4)
    memory = random(*shape).astype(dtype)
    q, k, v, out = np.moveaxis(memory, axis, 0)
    q, k, v = (x.copy() for x in (q, k, v))
    expected = fovea.attention(q, k, v, layout="BTHD")
    fovea.attention(*np.moveaxis(memory, axis, 0)[:3], layout="BTHD", out=out)
    assert np.array_equal(np.moveaxis(memory, axis, 0), [q, k, v, expected])
    with pytest.raises(ValueError, match="overlap"):
        fovea.attention(*np.moveaxis(memory, axis, 0)[:3], layout="BTHD", out=np.moveaxis(memory, axis, 0)[2])


def test_as_numpy_sees_it():
    """Views of random strides in one buffer: refused exactly where NumPy finds an element in both."""
    rng = np.random.default_rng(1)
    k = random(1, 1, 1, 3)
    refused = 0
    for _ in range(2000):
        memory = np.zeros(400, np.float32)
        views = []
        for is_output in (False, True):
            strides = rng.choice([-48, -40, -13, -6, -3, -2, -1, 1, 2, 3, 4, 6, 7, 12, 24, 48] + [0] * (not is_output), size=3)
            shape = (int(rng.integers(1, 4)), 2, 3) if not views else views[0].shape[1:]
            ends = (np.array(shape) - 1) * strides
            low, high = ends[ends < 0].sum(), ends[ends > 0].sum()
            first = int(rng.integers(-low, 400 - high))
            views.append(np.lib.stride_tricks.as_strided(memory[first:], (1, *shape), (0, *(4 * strides))))
        q, out = views
        if np.shares_memory(q, out):
            refused += 1
            with pytest.raises(ValueError, match="out and q overlap"):
                fovea.attention(q, k, k, out=out)
        else:
            fovea.attention(q, k, k, out=out)
    assert 200 < refused < 1800


def test_outputs_have_memory_for_each_element():
    q = random(1, 2, 4, 8)
    out = np.lib.stride_tricks.as_strided(np.zeros(64, np.float32), q.shape, (0, 0, 32, 4))
    with pytest.raises(ValueError, match="out has stride 0 along an axis of 2"):
        fovea.attention(q, q, q, out=out)


def test_merge():
    q, k, v = random(1, 2, 4, 8), random(1, 2, 10, 8), random(1, 2, 10, 8)
    parts = [fovea.attention(q, k[:, :, part], v[:, :, part], return_lse=True) for part in (slice(0, 3), slice(3, 10))]
    expected = fovea.merge(parts)
    buffer = np.zeros(100, np.float32)
    for keywords, message in [
        ({"out": parts[0][0][:, ::-1]}, "out and out of a part"),
        ({"lse": parts[1][1][:, ::-1]}, "lse and lse of a part"),
        ({"lse": parts[1][0][..., 0]}, "lse and out of a part"),
        ({"out": buffer[:64].reshape(q.shape), "lse": buffer[60:68].reshape(1, 2, 4)}, "out and lse overlap"),
    ]:
        with pytest.raises(ValueError, match=message):
            fovea.merge(parts, **keywords)
    out, lse = fovea.merge(parts, out=parts[1][0], lse=parts[0][1])  # those of one part may be written
    assert out is parts[1][0] and lse is parts[0][1]
    assert np.array_equal(out, expected[0]) and np.array_equal(lse, expected[1])
