"""OpenVINO's CPU plugin: ScaledDotProductAttention as it is; with the query heads of a group as more rows of one head; and its decoder's form, whose
cache is a state that the plugin fuses into the operation and grows by a row a call."""

import ml_dtypes
import numpy as np
import openvino as ov
import openvino.opset6 as opset6
import openvino.opset13 as ops
from openvino.op.util import Variable, VariableInfo

from libraries import refuse

COMPUTING = ("ScaledDotProductAttention", "Subgraph", "MatMul", "FullyConnected", "Softmax")  # layers; Subgraph: the fused attention of static shapes
TYPES = {"f32": ov.Type.f32, "f16": ov.Type.f16, "bf16": ov.Type.bf16}


def versions():
    return {"openvino": ov.__version__}


def settings(threads):
    return {name: str(value) for name, value in _configuration(threads).items()} | {"INFERENCE_PRECISION_HINT": "the type of the tensors"}


def _configuration(threads):
    return {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False, "PERFORMANCE_HINT": "LATENCY"}


def prepare(kind, tensors, threads):
    w = tensors.workload
    refuse(w.softcap or w.sinks, "no softcap or sinks")
    return {"plain": Plain, "folded": Folded, "stateful": Stateful}[kind](tensors, threads)


def _tensor(array):
    array = np.ascontiguousarray(array)
    if array.dtype == ml_dtypes.bfloat16:
        return ov.Tensor(array.view(np.uint16), ov.Shape(array.shape), ov.Type.bf16)
    return ov.Tensor(array, shared_memory=True)


def _int64(*values):
    return ops.constant(list(values), ov.Type.i64)


class _Case:
    def compile(self, model, threads, **more):
        self.compiled = ov.Core().compile_model(model, "CPU", {**_configuration(threads), **more})
        layers = {}
        for operation in self.compiled.get_runtime_model().get_ops():
            info = operation.get_rt_info()
            layers.setdefault(info["layerType"].astype(str), info["runtimePrecision"].astype(str))
        precisions = {p for layer, p in layers.items() if layer in COMPUTING}
        self.notes = {"layers": " ".join(f"{layer}:{p}" for layer, p in sorted(layers.items()) if layer not in ("Input", "Output", "Const"))}
        self.computed = next((p for p in ("bf16", "f16", "f32") if p in precisions), self.tensors.dtype)

    def result_array(self, request):
        data = request.get_output_tensor(0).data
        if self.compiled.outputs[0].element_type == ov.Type.bf16 and data.dtype != ml_dtypes.bfloat16:
            data = np.asarray(data).view(np.uint16).view(ml_dtypes.bfloat16)
        w = self.tensors.workload
        return np.asarray(data).astype(np.float32).reshape(w.B, w.Hq, w.Tq, w.dv)


class Plain(_Case):
    folded = False

    def __init__(self, tensors, threads):
        self.tensors = tensors
        w, element = tensors.workload, TYPES[tensors.dtype]
        q = tensors.q.reshape(w.B, w.Hkv, w.group * w.Tq, w.dk) if self.folded else tensors.q
        q_node, k_node, v_node = (ops.parameter(list(shape), element) for shape in (q.shape, *(array.shape for array in tensors.caches[0])))
        parameters, k_all, v_all = [q_node, k_node, v_node], k_node, v_node
        if w.group > 1 and not self.folded:
            k_all, v_all = self.repeat(k_node, w.dk), self.repeat(v_node, w.dv)

        bias = tensors.total_bias()
        own_causal = w.causal and w.Tq == w.Tk and not (w.mask or w.window or bias is not None)
        mask = tensors.visibility(causal_too=not own_causal)
        if bias is not None:
            mask = (bias if mask is None else np.where(mask, bias, -np.inf)).astype(tensors.q.dtype)
        arguments = [q_node, k_all, v_all]
        if mask is not None:
            mask_node = ops.parameter(list(mask.shape), ov.Type.boolean if mask.dtype == bool else element)
            parameters.append(mask_node)
            arguments.append(mask_node)
        attention = ops.scaled_dot_product_attention(*arguments, causal=own_causal)
        self.compile(ov.Model([ops.result(attention)], parameters), threads, INFERENCE_PRECISION_HINT=element)

        self.request = self.compiled.create_infer_request()
        self.inputs = [(_tensor(k), _tensor(v)) for k, v in tensors.caches]
        self.kept = [np.ascontiguousarray(q)] + ([] if mask is None else [np.ascontiguousarray(mask)])  # tensors borrow their memory
        for place, array in zip((0, 3), self.kept):
            self.request.set_input_tensor(place, _tensor(array))

    def repeat(self, node, channels):
        w = self.tensors.workload
        repeated = ops.broadcast(ops.unsqueeze(node, _int64(2)), _int64(w.B, w.Hkv, w.group, w.Tk, channels))
        return ops.reshape(repeated, _int64(w.B, w.Hq, w.Tk, channels), False)

    def run(self, i):
        k, v = self.inputs[i % len(self.inputs)]
        self.request.set_input_tensor(1, k)
        self.request.set_input_tensor(2, v)
        self.request.infer()

    def out(self):
        return self.result_array(self.request)


class Folded(Plain):
    folded = True

    def __init__(self, tensors, threads):
        w = tensors.workload
        refuse(w.group == 1, "no groups to fold")
        by_row = w.causal or w.window or w.alibi or w.mask not in ("", "padding") or w.bias not in ("", "keys")
        refuse(by_row, "what depends on the row or the head cannot be folded")
        super().__init__(tensors, threads)


class Stateful(_Case):
    """Inputs are f32; the cache has the workload's type, products are of f32 or else of bf16."""

    def __init__(self, tensors, threads):
        self.tensors = tensors
        w = tensors.workload
        refuse(w.Tq != 1 or w.mask or w.bias or w.alibi or w.window, "driven for single tokens without masks and biases")
        names = ("q", "k", "v", "beam")
        shapes = ([-1, w.Hq, -1, w.dk], [-1, w.Hkv, -1, w.dk], [-1, w.Hkv, -1, w.dv], [-1])
        parameters = [ops.parameter(ov.PartialShape(shape), ov.Type.i32 if name == "beam" else ov.Type.f32) for name, shape in zip(names, shapes)]
        for name, parameter in zip(names, parameters):
            parameter.output(0).set_names({name})
            parameter.set_friendly_name(name)
        q_node, k_node, v_node, beam = parameters
        zero = ops.constant(0, ov.Type.i64)
        caches, assigns = [], []
        for name, new, channels in (("past_k", k_node, w.dk), ("past_v", v_node, w.dv)):
            batch = ops.gather(ops.shape_of(beam), _int64(0), zero)
            empty = ops.broadcast(ops.constant(0.0, ov.Type.f32), ops.concat([batch, _int64(w.Hkv, 0, channels)], 0))
            info = VariableInfo()
            info.data_shape, info.data_type, info.variable_id = ov.PartialShape([-1, w.Hkv, -1, channels]), ov.Type.f32, name
            variable = Variable(info)
            cache = ops.concat([ops.gather(opset6.read_value(empty, variable), beam, zero), new], 2)
            assigns.append(opset6.assign(cache, variable))
            if w.group > 1:  # the plugin fuses Unsqueeze, Multiply by ones and Reshape; a Broadcast in their place it does not
                cache = ops.multiply(ops.unsqueeze(cache, ops.constant(2, ov.Type.i64)), ops.constant(np.ones((1, 1, w.group, 1, 1), np.float32)))
                cache = ops.reshape(cache, _int64(0, w.Hq, -1, channels), True)
            caches.append(cache)
        attention = ops.scaled_dot_product_attention(q_node, *caches, causal=False)
        model = ov.Model([ops.result(attention)], assigns, parameters, "decoder")
        precision = ov.Type.f32 if tensors.dtype == "f32" else ov.Type.bf16
        self.compile(model, threads, INFERENCE_PRECISION_HINT=precision, KV_CACHE_PRECISION=TYPES[tensors.dtype])
        self.computed = "f32" if tensors.dtype == "f32" else "bf16"
        self.notes["kv_cache"] = tensors.dtype

        self.requests = []
        for k, v in tensors.caches:
            k, v = k.astype(np.float32), v.astype(np.float32)
            request = self.compiled.create_infer_request()
            for state in request.query_state():
                state.state = ov.Tensor(np.ascontiguousarray((k if state.name == "past_k" else v)[:, :, :-1]))
            inputs = {"q": tensors.q.astype(np.float32), "k": k[:, :, -1:], "v": v[:, :, -1:], "beam": np.arange(w.B, dtype=np.int32)}
            arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
            for name, array in arrays.items():
                request.set_tensor(name, ov.Tensor(array, shared_memory=True))
            self.requests.append((request, arrays))

    def run(self, i):
        self.requests[i % len(self.requests)][0].infer()

    def out(self):
        return self.result_array(self.requests[0][0])
