"""What does not fit is a Python exception: never a crash, a copy or a cast. Outputs stay as they were."""

import array
import os
import subprocess
import sys

import numpy as np
import pytest

import fovea


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype=dtype)


Q, K, V = zeros(2, 4, 3, 8), zeros(2, 2, 5, 8), zeros(2, 2, 5, 6)
READ_ONLY = zeros(2, 4, 3, 6)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "error, message, arguments, keywords",
    [
        (TypeError, "q is of type int", (1, K, V), {}),
        (TypeError, "q is of type list", (Q.tolist(), K, V), {}),
        (TypeError, "k is of type NoneType", (Q, None, V), {}),
        (TypeError, "float64", (Q.astype(np.float64), K, V), {}),
        (TypeError, "v has elements of type complex64|'Zf'", (Q, K, V.astype(np.complex64)), {}),
        (TypeError, "uint16", (Q.astype(np.uint16), K, V), {}),
        (TypeError, "foreign byte order", (Q.astype(">f4"), K, V), {}),
        (TypeError, "object|'O'", (np.zeros(Q.shape, dtype=object), K, V), {}),
        (ValueError, "q", (Q.astype(np.int32), K, V), {}),
        (ValueError, "q has 5 axes", (Q[None], K, V), {}),
        (ValueError, "q has 0 axes", (np.float32(1).reshape(()), K, V), {}),
        (ValueError, "q.rank = 1", (Q[0, 0, 0], K, V), {}),
        (ValueError, "rank", (Q[0], K, V), {}),
        (ValueError, r"k.shape\[3\] = 7, expected 8", (Q, K[..., :7], V), {}),
        (ValueError, r"v.shape\[2\] = 4", (Q, K, V[:, :, :4]), {}),
        (ValueError, r"shape\[1\]", (Q[:, :3], K, V), {}),
        (ValueError, r"shape\[0\]", (Q, K[:1], V), {}),
        (ValueError, "out is read-only", (Q, K, V), {"out": READ_ONLY}),
        (ValueError, "out", (Q, K, V), {"out": zeros(2, 4, 3, 7)}),
        (TypeError, "out", (Q, K, V), {"out": zeros(2, 4, 3, 6, dtype=np.float64)}),
        (TypeError, "out is of type bool", (Q, K, V), {"out": True}),
        (ValueError, "lse", (Q, K, V), {"lse": zeros(2, 4, 4)}),
        (ValueError, "lse", (Q, K, V), {"lse": zeros(2, 4, 3, dtype=np.float16)}),
        (ValueError, "softcap", (Q, K, V), {"softcap": -1}),
        (ValueError, "scale", (Q, K, V), {"scale": float("nan")}),
        (TypeError, "scale", (Q, K, V), {"scale": "1"}),
        (ValueError, "window", (Q, K, V), {"window": (-2, 0)}),
        (TypeError, "window", (Q, K, V), {"window": 3}),
        (ValueError, "causal", (Q, K, V), {"causal": "yes"}),
        (ValueError, "layout", (Q, K, V), {"layout": "HTBD"}),
        (ValueError, "kv_lengths", (Q, K, V), {"kv_lengths": [5, 6]}),
        (ValueError, "kv_lengths", (Q, K, V), {"kv_lengths": [-1, 5]}),
        (ValueError, "kv_lengths", (Q, K, V), {"kv_lengths": [5]}),
        (TypeError, "kv_lengths", (Q, K, V), {"kv_lengths": [5, "5"]}),
        (ValueError, "kv_lengths", (Q, K, V), {"kv_lengths": zeros(2)}),
        (ValueError, "q_lengths", (Q, K, V), {"q_lengths": [3, 4]}),
        (ValueError, "cu_seqlens_q", (Q[:1], K[:1], V[:1]), {"cu_seqlens_q": [0, 9]}),
        (ValueError, "mask", (Q, K, V), {"mask": np.ones((3, 4), bool)}),
        (ValueError, "mask", (Q, K, V), {"mask": zeros(3, 5)}),
        (ValueError, "both", (Q, K, V), {"mask": np.ones((3, 5), bool), "mask_bits": np.ones((3, 1), np.uint8)}),
        (ValueError, "mask_bits", (Q, K, V), {"mask_bits": np.ones((3, 2), np.uint8)}),
        (TypeError, "mask_bits", (Q, K, V), {"mask_bits": np.ones((3, 1), bool)}),
        (ValueError, "bias", (Q, K, V), {"bias": np.ones((3, 5), bool)}),
        (TypeError, "bias", (Q, K, V), {"bias": [0.0] * 5}),
        (TypeError, "block_map", (Q, K, V), {"block_map": np.ones((1, 1), bool)}),
        (ValueError, "block_map", (Q, K, V), {"block_map": (np.ones((1, 1), bool), 0, 1)}),
        (ValueError, "parents", (Q, K, V), {"parents": np.full((2, 3), 7)}),
        (ValueError, "sinks", (Q, K, V), {"sinks": [0.0]}),
        (ValueError, "head_scales", (Q, K, V), {"head_scales": [1.0]}),
        (TypeError, "head_scales", (Q, K, V), {"head_scales": ["1"] * 4}),
        (ValueError, "bias_scales", (Q, K, V), {"bias_scales": zeros(4, dtype=np.float16)}),
        (ValueError, "key_ranges", (Q, K, V), {"key_ranges": np.zeros((2, 3), np.int32)}),
        (ValueError, r"key_ranges.shape\[2\] = 3", (Q, K, V), {"key_ranges": np.zeros((2, 3, 3), np.int32)}),
        (ValueError, "key_ranges", (Q, K, V), {"key_ranges": zeros(1, 3, 2)}),
        (TypeError, "key_ranges", (Q, K, V), {"key_ranges": [[[0, 5]] * 3]}),
        (TypeError, "Python function.*GIL", (Q, K, V), {"score_function": lambda context, block: None}),
        (TypeError, "Python function", (Q, K, V), {"score_function": (print, None)}),
        (TypeError, "of type str", (Q, K, V), {"score_function": "softplus"}),
        (TypeError, "of type bool", (Q, K, V), {"score_function": True}),
        (TypeError, "tuple of 3", (Q, K, V), {"score_function": (4096, None, None)}),
        (TypeError, "context of score_function is of type list", (Q, K, V), {"score_function": (4096, [1.0])}),
        (TypeError, "context of score_function", (Q, K, V), {"score_function": (4096, zeros(4, 4)[:, ::2])}),
        (ValueError, "null", (Q, K, V), {"score_function": 0}),
        (ValueError, "null", (Q, K, V), {"score_function": fovea.score_function_type()}),
        (ValueError, "score_function = -1", (Q, K, V), {"score_function": -1}),
        (ValueError, "context of score_function = -1", (Q, K, V), {"score_function": (4096, -1)}),
        (ValueError, "alibi", (Q, K, V), {"alibi_slopes": zeros(4, dtype=np.float16)}),
        (ValueError, "engine", (Q, K, V), {"engine": "gpu"}),
        (ValueError, "product", (Q, K, V), {"product": "int8"}),
        (ValueError, "product|bf16", (Q, K, V), {"product": "bf16"}),
        (ValueError, "avx", (Q, K, V), {"isa": "mmx"}),
        (ValueError, "threads", (Q, K, V), {"threads": -1}),
        (TypeError, "threads", (Q, K, V), {"threads": 1.5}),
        (ValueError, "score_stage", (Q, K, V), {"score_stage": "raw"}),
        (TypeError, "unexpected keyword argument 'masks'", (Q, K, V), {"masks": None}),
        (TypeError, "unexpected keyword argument 'fixed_mask'", (Q, K, V), {"fixed_mask": True}),
        (TypeError, "incompatible|missing", (Q, K), {}),
        (TypeError, "v is of type", (Q, K, type), {}),
        (ValueError, "rank|axes", (array.array("f", [1.0]), K, V), {}),
    ],
)
def test_refused(error, message, arguments, keywords):
    with pytest.raises(error, match=message):
        fovea.attention(*arguments, **keywords)
    if not {"fixed_mask", "parents"} & keywords.keys():  # a plan has the one, and leaves what is in the other to its runs
        with pytest.raises(error, match=None if "unexpected" in message else message):
            fovea.Plan(*arguments, **keywords)


def test_outputs_stay_as_they_were():
    out = np.full((2, 4, 3, 6), 7, np.float32)
    with pytest.raises(ValueError):
        fovea.attention(Q, K, V, out=out, kv_lengths=[5, 6])
    assert (out == 7).all()


def test_unsupported_is_a_value_error():
    assert issubclass(fovea.UnsupportedError, ValueError)
    missing = set(fovea.compiled_targets()) - set(fovea.targets())
    for isa in missing:
        with pytest.raises(fovea.UnsupportedError):
            fovea.attention(Q, K, V, isa=isa)


def test_bad_thread_counts():
    for threads in (0, -3):
        with pytest.raises(ValueError):
            fovea.set_threads(threads)
    with pytest.raises(TypeError):
        fovea.set_threads("two")


def test_numbers_out_of_range():
    with pytest.raises(TypeError):
        fovea.attention(Q, K, V, query_offset=2**70)
    with pytest.raises(ValueError):
        fovea.attention(Q, K, V, query_offset=2**63 - 1)
    with pytest.raises((TypeError, OverflowError, ValueError)):
        fovea.attention(Q, K, V, kv_lengths=[2**70, 1])


def test_a_bad_fovea_target_of_the_environment():
    program = "import fovea, numpy as np; x = np.zeros((1, 1, 1, 1), np.float32); fovea.attention(x, x, x)"
    run = subprocess.run([sys.executable, "-c", program], env={**os.environ, "FOVEA_TARGET": "mmx"}, capture_output=True, text=True)
    assert run.returncode == 1 and "ValueError" in run.stderr and "mmx" in run.stderr
