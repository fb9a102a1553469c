"""ONNX's Attention: the published cases of its backend tests, and random nodes against its reference implementation."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fovea
import fovea.onnx

SUITE = Path(__file__).parents[2] / "tests" / "data" / "conformance" / "onnx"
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "bool": np.bool_, "i32": np.int32}


class Suite:
    """tests/data/conformance/README.md; of the ways to give data, this suite uses `tensor` and `fill`."""

    def __init__(self):
        with open(SUITE / "tensors.safetensors", "rb") as f:
            raw = f.read()
        start = 8 + int.from_bytes(raw[:8], "little")
        self.header, self.data = json.loads(raw[8:start]), raw[start:]

    def tensor(self, entry):
        if "fill" in entry:
            return np.full(entry["shape"], entry["fill"], dtype=DTYPES[entry["dtype"]])
        begin, end = self.header[entry["tensor"]]["data_offsets"]
        return np.frombuffer(self.data[begin:end], dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])


CASES = json.loads((SUITE / "manifest.json").read_text())["cases"] if SUITE.exists() else []


@pytest.fixture(scope="module")
def suite():
    return Suite()


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_published(case, suite):
    inputs = {name: suite.tensor(entry) for name, entry in case["inputs"].items()}
    params = case["params"]
    q, k, v = inputs.pop("q"), inputs.pop("k"), inputs.pop("v")
    keywords = {"scale": params["scale"], "softcap": params["softcap"], "is_causal": int(params["causal"] != "none")}
    past = params["query_offset"] or 0
    if "kv_lengths" in inputs:
        assert past == 0
        keywords["nonpad_kv_seqlen"] = inputs.pop("kv_lengths").astype(np.int64)
    elif params["causal"] == "bottom_right":
        past = k.shape[2 if case["layout"] == "BHTD" else 1] - q.shape[2 if case["layout"] == "BHTD" else 1]
    if case["layout"] == "BTHD":
        keywords |= {"q_num_heads": q.shape[2], "kv_num_heads": k.shape[2]}
        if past:
            keywords |= {"past_key": k[:, :past].transpose(0, 2, 1, 3), "past_value": v[:, :past].transpose(0, 2, 1, 3)}
        expected_present = k.transpose(0, 2, 1, 3)
        q, k, v = (x.reshape(x.shape[0], x.shape[1], -1) for x in (q, k[:, past:], v[:, past:]))
    else:
        expected_present = k
        if past:
            keywords |= {"past_key": k[:, :, :past], "past_value": v[:, :, :past]}
        k, v = k[:, :, past:], v[:, :, past:]
    mask = [inputs.pop(name) for name in ("mask", "bias") if name in inputs]
    assert len(mask) <= 1 and not inputs
    wants_weights = "weights" in case["expect"]
    Y, present_key, _, weights = fovea.onnx.attention(q, k, v, *mask, qk_matmul_output=wants_weights, qk_matmul_output_mode=3, **keywords)
    assert np.array_equal(present_key, expected_present)
    for name, got in (("out", Y), ("weights", weights)):
        if name in case["expect"]:
            entry = case["expect"][name]
            expected, tol = suite.tensor(entry), entry.get("tol", case["tol"])
            assert got.dtype == q.dtype
            worst = np.abs(got.astype(np.float64).reshape(expected.shape) - expected.astype(np.float64)) - tol["rtol"] * np.abs(expected.astype(np.float64))
            assert worst.max() <= tol["atol"]


def test_the_suite_is_there():
    assert len(CASES) == 64


# ---------------------------------------------------------------- random nodes

onnx = pytest.importorskip("onnx", "1.22")
from onnx.reference import ReferenceEvaluator  # noqa: E402


def graph(opset, inputs, outputs, attributes):
    """A model of one node; absent inputs and outputs have no name."""
    names = list(inputs)
    while names and inputs[names[-1]] is None:
        names.pop()
    node_inputs = [name if inputs[name] is not None else "" for name in names]
    types = {name: onnx.helper.np_dtype_to_tensor_dtype(inputs[name].dtype) for name in names if inputs[name] is not None}
    node = onnx.helper.make_node("Attention", node_inputs, outputs, **attributes)
    infos = [onnx.helper.make_tensor_value_info(name, types[name], inputs[name].shape) for name in types]
    results = [onnx.helper.make_tensor_value_info(name, types["Q"], None) for name in outputs]
    body = onnx.helper.make_graph([node], "one", infos, results)
    return onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", opset)])


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_random_nodes(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    opset = draw(st.sampled_from([23, 24, 25]))
    dtype = draw(st.sampled_from([np.float32, np.float16]))
    B, Hkv, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    Tq, T, dk, dv = draw(st.integers(1, 9)), draw(st.integers(1, 12)), draw(st.sampled_from([4, 8])), draw(st.sampled_from([4, 8]))

    def random(*shape):
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype)

    attributes = {"is_causal": draw(st.integers(0, 1))}
    if draw(st.booleans()):
        attributes["scale"] = draw(st.sampled_from([0.1, 0.7]))
    if draw(st.booleans()):
        attributes["softcap"] = draw(st.sampled_from([0.0, 1.5]))
    if draw(st.booleans()):
        attributes["softmax_precision"] = draw(st.sampled_from([1, 11]))
    if opset >= 25:
        for side in ("left", "right"):
            if draw(st.booleans()):
                attributes[side + "_window_size"] = draw(st.integers(-1, 6))

    inputs = {"Q": random(B, Hkv * group, Tq, dk), "K": random(B, Hkv, T, dk), "V": random(B, Hkv, T, dv), "attn_mask": None, "past_key": None, "past_value": None,
              "nonpad_kv_seqlen": None}  # fmt: skip
    Tk = T
    cache = draw(st.sampled_from(["none", "past", "nonpad"] if opset >= 24 else ["none", "past"]))
    if cache == "past":
        P = draw(st.integers(1, 7))
        Tk += P
        inputs["past_key"], inputs["past_value"] = random(B, Hkv, P, dk), random(B, Hkv, P, dv)
    elif cache == "nonpad":
        inputs["nonpad_kv_seqlen"] = rng.integers(1, T + 1, B).astype(np.int64)
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    if kind != "none":
        width = draw(st.integers(1, Tk)) if opset >= 24 and draw(st.booleans()) else Tk
        axes = draw(st.sampled_from([(), (1, 1), (B, Hkv * group), (B, 1)]))
        values = random(*axes, Tq, width)
        inputs["attn_mask"] = values if kind == "float" else values > -0.5
    if draw(st.booleans()):  # three axes
        for name, heads in (("Q", Hkv * group), ("K", Hkv), ("V", Hkv)):
            x = inputs[name].transpose(0, 2, 1, 3)
            inputs[name] = np.ascontiguousarray(x).reshape(B, x.shape[1], -1)
        attributes |= {"q_num_heads": Hkv * group, "kv_num_heads": Hkv}
    outputs = ["Y"]
    if cache == "past" or draw(st.booleans()):
        outputs += ["present_key", "present_value"]
        if draw(st.booleans()):
            outputs.append("qk_matmul_output")
            # Mode 0 is the raw product by the operator's text; the reference gives it with the soft cap, where there is one.
            attributes["qk_matmul_output_mode"] = draw(st.integers(1 if attributes.get("softcap") else 0, 3))

    model = graph(opset, inputs, outputs, attributes)
    feeds = {name: x for name, x in inputs.items() if x is not None}
    expected = ReferenceEvaluator(model).run(None, feeds)
    got = ReferenceEvaluator(model, new_ops=[fovea.onnx.operator()]).run(None, feeds)
    # The reference rounds every step to the inputs' type.
    bound = 2e-5 if dtype == np.float32 else 0.03
    for name, e, g in zip(outputs, expected, got):
        e, g = e.astype(np.float64), g.astype(np.float64)
        assert g.shape == e.shape, name
        finite = np.isfinite(e)
        assert np.array_equal(g[~finite], e[~finite]), name
        assert np.max(np.abs(g[finite] - e[finite]), initial=0) <= bound, name


# ---------------------------------------------------------------- the package's own cases


def package_cases():
    """All of the installed package, its expectations too. (They draw from NumPy's global generator, in the order of their names.)"""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return [case for case in collect_testcases("Attention") if case.name.startswith("test_attention") and not case.name.endswith("_expanded")]


PACKAGE_CASES = package_cases()


def test_the_package_has_cases():
    assert len(PACKAGE_CASES) >= 85  # 93 of onnx 1.23


@pytest.mark.parametrize("case", PACKAGE_CASES, ids=lambda case: case.name)
def test_package(case):
    """By the case's own tolerance; in 16 bits no further from the exact result of the stored inputs than twice the case's own expectation, which rounds every step, or than
    one unit of the result."""
    names = [name for name in case.model.graph.node[0].input]
    for inputs, expected in case.data_sets:
        feeds = dict(zip([info.name for info in case.model.graph.input], inputs))
        got = ReferenceEvaluator(case.model, new_ops=[fovea.onnx.operator()]).run(None, feeds)
        assert len(got) == len(expected) and names
        small = expected[0].dtype not in (np.float32, np.float64)
        if small:
            wide = {name: x if x.dtype.kind in "biu" else x.astype(np.float32) for name, x in feeds.items()}
            exact = ReferenceEvaluator(widened(case.model)).run(None, wide)
        for i, (e, g) in enumerate(zip(expected, got)):
            assert g.shape == e.shape and g.dtype == e.dtype
            e, g = e.astype(np.float64), g.astype(np.float64)
            finite = np.isfinite(e)
            assert np.array_equal(g[~finite], e[~finite], equal_nan=True)
            if not small:
                np.testing.assert_allclose(g, e, rtol=case.rtol, atol=max(case.atol, 1e-6))
                continue
            x = exact[i].astype(np.float64)
            unit = (2.0**-7 if expected[0].dtype == ml_dtypes.bfloat16 else 2.0**-10) * np.abs(x[finite]).max(initial=0)
            assert np.abs(g - x)[finite].max(initial=0) <= max(2 * np.abs(e - x)[finite].max(initial=0), unit)


def widened(model):
    """The same model for inputs of float32."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info in list(copy.graph.input) + list(copy.graph.output):
        if info.type.tensor_type.elem_type in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16):
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return copy


@pytest.mark.parametrize("keys", [5, 3000])
def test_a_softmax_in_double_precision_changes_no_more_than_the_bound(keys):
    """Against float64 from the stored inputs: what softmax_precision = double may ask for is kept."""
    rng = np.random.default_rng(keys)
    q, k, v = (rng.standard_normal((1, 2, n, 16), dtype=np.float32) for n in (7, keys, keys))
    (Y, _, _, _), wide = fovea.onnx.attention(q, k, v, softmax_precision=11), [x.astype(np.float64) for x in (q, k, v)]
    scores = wide[0] @ wide[1].swapaxes(2, 3) / 4
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    exact = weights / weights.sum(-1, keepdims=True) @ wide[2]
    assert np.abs(Y - exact).max() <= 1e-5 * np.abs(v).max()


@pytest.mark.parametrize(
    "message, keywords",
    [
        ("past_key and past_value", {"past_key": np.zeros((1, 2, 3, 4), np.float32)}),
        ("qk_matmul_output_mode", {"qk_matmul_output_mode": 4}),
        ("softmax_precision", {"softmax_precision": 7}),
        ("window", {"left_window_size": -2}),
        ("bias", {"attn_mask": np.zeros((3, 9), np.float32)}),
        ("kv_lengths", {"nonpad_kv_seqlen": np.array([6])}),
    ],
)
def test_refused(message, keywords):
    q, k = np.zeros((1, 2, 3, 4), np.float32), np.zeros((1, 2, 5, 4), np.float32)
    with pytest.raises(ValueError, match=message):
        fovea.onnx.attention(q, k, k, **keywords)


def test_refused_shapes():
    x = np.zeros((1, 3, 8), np.float32)
    with pytest.raises(ValueError, match="heads"):
        fovea.onnx.attention(x, x, x)
    with pytest.raises(ValueError, match="heads"):
        fovea.onnx.attention(x, x, x, q_num_heads=3, kv_num_heads=3)
    with pytest.raises(ValueError, match="axes"):
        fovea.onnx.attention(x, x[None], x)
    with pytest.raises(TypeError, match="float64"):
        fovea.onnx.attention(*(np.zeros((1, 2, 3, 4)),) * 3)
