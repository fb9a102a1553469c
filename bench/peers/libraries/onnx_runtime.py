"""ONNX Runtime's CPU provider: MultiHeadAttention and GroupQueryAttention of its own domain, and ONNX's standard Attention."""

import os
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from libraries import refuse

ELEMENT = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16}
OPSET = 24


def versions():
    return {"onnxruntime": ort.__version__, "onnx": onnx.__version__}


def settings(threads):
    # Threads spin within a call, as by default, but not on beyond it, into the turns of other libraries.
    return {"threads": threads, "provider": "CPUExecutionProvider", "session.force_spinning_stop": "1", "opset": OPSET}


def prepare(kind, tensors, threads):
    refuse(tensors.dtype == "bf16", "no bf16 on the CPU provider")
    return {"MultiHeadAttention": MultiHead, "GroupQueryAttention": GroupQuery, "Attention": Standard}[kind](tensors, threads)


def _by_token(array):
    """[B, H, T, d] → [B, T, H·d]"""
    B, H, T, d = array.shape
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3).reshape(B, T, H * d))


class _Case:
    """Sessions whose inputs and outputs are bound once for each copy of K and V."""

    def __init__(self, tensors, threads):
        self.tensors, self.w, self.threads = tensors, tensors.workload, threads
        self.element = ELEMENT[tensors.dtype]
        self.bindings, self.kept, self.outputs = [], [], []

    def open(self, node, inputs, outputs):
        """inputs, outputs: (name, element, shape). Notes the operators that the optimised graph really has."""
        graph = helper.make_graph([node], "attention", [helper.make_tensor_value_info(*i) for i in inputs], [helper.make_tensor_value_info(*o) for o in outputs])
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.force_spinning_stop", "1")
        with tempfile.TemporaryDirectory() as folder:
            options.optimized_model_filepath = os.path.join(folder, "optimized.onnx")
            self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            operators = [n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node]
        # Without a kernel of this type the provider casts to f32, computes there and casts back.
        self.computed = "f32" if "Cast" in operators else self.tensors.dtype
        self.notes = {"operators": " ".join(operators)}

    def bind(self, inputs, outputs):
        binding = self.session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        self.bindings.append(binding)
        self.kept.append((inputs, outputs))

    def new_output(self, *shape):
        return ort.OrtValue.ortvalue_from_shape_and_type(list(shape), self.tensors.q.dtype.type)

    def run(self, i):
        self.session.run_with_iobinding(self.bindings[i % len(self.bindings)])

    def last(self):
        return self.kept[0][1]["y"].numpy().astype(np.float32)


def _value(array):
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


class MultiHead(_Case):
    def __init__(self, tensors, threads):
        super().__init__(tensors, threads)
        w = self.w
        refuse(w.group > 1, "no grouped heads")
        refuse(w.window or w.softcap or w.sinks or w.mask, "no window, softcap, sinks or boolean mask")
        refuse(w.causal and w.Tq != w.Tk, "causal only where Tq = Tk")
        bias = tensors.total_bias()
        inputs = [("q", self.element, [w.B, w.Tq, w.Hq * w.dk]), ("k", self.element, [w.B, w.Tk, w.Hq * w.dk]), ("v", self.element, [w.B, w.Tk, w.Hq * w.dv])]
        names = ["q", "k", "v"]
        if bias is not None:
            bias = np.broadcast_to(bias, (1, w.Hq, w.Tq, w.Tk)).astype(tensors.q.dtype)
            inputs.append(("bias", self.element, list(bias.shape)))
            names += ["", "", "bias"]
        node = helper.make_node("MultiHeadAttention", names, ["y"], domain="com.microsoft", num_heads=w.Hq, unidirectional=int(w.causal))
        self.open(node, inputs, [("y", self.element, [w.B, w.Tq, w.Hq * w.dv])])
        more = {} if bias is None else {"bias": _value(bias)}
        q, y = _value(_by_token(tensors.q)), self.new_output(w.B, w.Tq, w.Hq * w.dv)
        for k, v in tensors.caches:
            self.bind({"q": q, "k": _value(_by_token(k)), "v": _value(_by_token(v)), **more}, {"y": y})

    def out(self):
        w = self.w
        return self.last().reshape(w.B, w.Tq, w.Hq, w.dv).transpose(0, 2, 1, 3)


class GroupQuery(_Case):
    """Past and present share one buffer of Tk rows, the way decoders use it: a call writes the new rows and copies none."""

    def __init__(self, tensors, threads):
        super().__init__(tensors, threads)
        w = self.w
        refuse(not w.causal and w.Tq > 1, "causal only")
        refuse(w.Tq not in (1, w.Tk), "a first prompt or one token only, as it is driven here")
        refuse(w.dk != w.dv, "dv must be dk")
        refuse(w.mask or w.sinks or w.alibi or w.bias, "no mask, sinks, ALiBi or bias, as it is driven here")
        attributes = {"num_heads": w.Hq, "kv_num_heads": w.Hkv}
        if w.window:
            attributes["local_window_size"] = w.window
        if w.softcap:
            attributes["softcap"] = w.softcap
        cache, rows = [w.B, w.Hkv, "past", w.dk], [w.B, w.Tq, w.Hkv * w.dk]
        inputs = [("q", self.element, [w.B, w.Tq, w.Hq * w.dk]), ("k", self.element, rows), ("v", self.element, rows)]
        inputs += [("past_k", self.element, cache), ("past_v", self.element, cache)]
        inputs += [("last", TensorProto.INT32, [w.B]), ("total", TensorProto.INT32, [1])]
        outputs = [("y", self.element, [w.B, w.Tq, w.Hq * w.dk])]
        outputs += [(name, self.element, [w.B, w.Hkv, "present", w.dk]) for name in ("present_k", "present_v")]
        node = helper.make_node("GroupQueryAttention", [i[0] for i in inputs], [o[0] for o in outputs], domain="com.microsoft", **attributes)
        self.open(node, inputs, outputs)
        q, y = _value(_by_token(tensors.q)), self.new_output(w.B, w.Tq, w.Hq * w.dk)
        last, total = _value(np.full(w.B, w.Tk - 1, np.int32)), _value(np.array([w.Tk], np.int32))
        for k, v in tensors.caches:
            past_k, past_v = ort.OrtValue.ortvalue_from_numpy(k.copy()), ort.OrtValue.ortvalue_from_numpy(v.copy())
            new = {"k": _value(_by_token(k[:, :, w.Tk - w.Tq :])), "v": _value(_by_token(v[:, :, w.Tk - w.Tq :]))}
            self.bind(
                {"q": q, **new, "past_k": past_k, "past_v": past_v, "last": last, "total": total},
                {"y": y, "present_k": past_k, "present_v": past_v},
            )

    def out(self):
        w = self.w
        return self.last().reshape(w.B, w.Tq, w.Hq, w.dv).transpose(0, 2, 1, 3)


class Standard(_Case):
    def __init__(self, tensors, threads):
        super().__init__(tensors, threads)
        w = self.w
        refuse(w.sinks, "no sinks")
        bias = tensors.total_bias()
        own_causal = w.causal and w.Tq == w.Tk and not w.window
        mask = tensors.visibility(causal_too=not own_causal)
        if bias is not None:
            hidden = 0 if mask is None else np.where(mask, 0, -np.inf)
            mask = (bias + hidden).astype(tensors.q.dtype)
        inputs = [("q", self.element, list(tensors.q.shape))]
        inputs += [("k", self.element, [w.B, w.Hkv, w.Tk, w.dk]), ("v", self.element, [w.B, w.Hkv, w.Tk, w.dv])]
        more = {}
        if mask is not None:
            mask = np.broadcast_to(mask, (*mask.shape[:2], w.Tq, w.Tk))
            inputs.append(("mask", TensorProto.BOOL if mask.dtype == bool else self.element, list(mask.shape)))
            more["mask"] = _value(mask)
        node = helper.make_node("Attention", [i[0] for i in inputs], ["y"], is_causal=int(own_causal), softcap=float(w.softcap))
        self.open(node, inputs, [("y", self.element, [w.B, w.Hq, w.Tq, w.dv])])
        q, y = _value(tensors.q), self.new_output(w.B, w.Hq, w.Tq, w.dv)
        for k, v in tensors.caches:
            self.bind({"q": q, "k": _value(k), "v": _value(v), **more}, {"y": y})

    def out(self):
        return self.last()
