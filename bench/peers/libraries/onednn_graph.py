"""oneDNN through the graph interface of its C library: MatMul, Multiply, Add, SoftMax, MatMul, which it fuses where it can. The library is the file
FOVEA_ONEDNN, or libdnnl.so.3 of the Python environment (package onednn-cpu-gomp), or the system's."""

import ctypes
import ctypes.util
import os
import sys

import numpy as np

from libraries import refuse

_TYPES = {"f16": 1, "bf16": 2, "f32": 3}  # dnnl_data_type_t
_MATMUL, _MULTIPLY, _ADD, _SOFTMAX = 39, 46, 2, 64  # dnnl_graph_op_kind_t
_AXIS, _TRANSPOSE_B = 0x30, 0x66  # dnnl_graph_op_attr_t
_CPU, _STRIDED, _FUSION, _IN_ORDER = 1, 2, 1, 1
_MAX_DIMS = 12
_SYCL = 512  # runtimes other than this one take host pointers
_HIDDEN = -30000.0  # a finite number in every type: rows of −inf alone would be NaN


class _Logical(ctypes.Structure):
    """dnnl_graph_logical_tensor_t"""

    _fields_ = [
        ("id", ctypes.c_size_t),
        ("ndims", ctypes.c_int),
        ("dims", ctypes.c_int64 * _MAX_DIMS),
        ("data_type", ctypes.c_int),
        ("property", ctypes.c_int),
        ("layout_type", ctypes.c_int),
        ("strides", ctypes.c_int64 * _MAX_DIMS),
    ]


class _Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int), ("hash", ctypes.c_char_p)]
    _fields_ += [("cpu_runtime", ctypes.c_uint), ("gpu_runtime", ctypes.c_uint)]


def _open():
    candidates = [os.environ.get("FOVEA_ONEDNN"), os.path.join(sys.prefix, "lib", "libdnnl.so.3"), ctypes.util.find_library("dnnl")]
    for path in filter(None, candidates):
        try:
            library = ctypes.CDLL(path)
            library.dnnl_version.restype = ctypes.POINTER(_Version)
            version = library.dnnl_version().contents
            library.dnnl_graph_graph_create
        except (OSError, AttributeError):
            continue
        if version.cpu_runtime == _SYCL:
            raise ImportError(f"{path} runs on SYCL, which does not take host memory")
        return library, version
    raise ImportError("no libdnnl.so.3 with the graph interface: set FOVEA_ONEDNN, or install onednn-cpu-gomp")


_dnnl, _version = _open()


def _call(name, *arguments):
    status = getattr(_dnnl, name)(*arguments)
    refuse(status != 0, f"{name} returned {status}")


def _new(name, *arguments):
    handle = ctypes.c_void_p()
    _call(name, ctypes.byref(handle), *arguments)
    return handle


def versions():
    return {"onednn": f"{_version.major}.{_version.minor}.{_version.patch}"}


def settings(threads):
    return {"threads": f"{threads} of OpenMP", "policy": "fusion"}


def prepare(kind, tensors, threads):
    return Case(tensors)


def _cast(array, dtype):
    return np.ascontiguousarray(array).astype(dtype)


class Case:
    def __init__(self, tensors):
        w = tensors.workload
        refuse(w.softcap or w.sinks, "no softcap or sinks, as it is driven here")
        self.w, self.tensors, self.computed = w, tensors, tensors.dtype
        # Heads of a group are an axis of its own, along which K and V have one element.
        heads = lambda H, T, d: (w.B, H, T, d) if w.group == 1 else (w.B, w.Hkv, H // w.Hkv, T, d)
        self.kv_shapes = heads(w.Hkv, w.Tk, w.dk), heads(w.Hkv, w.Tk, w.dv)
        scores = heads(w.Hq, w.Tq, w.Tk)
        # Since 3.8 fused attention keeps scores in float; before, every operation had one type.
        score_type = "f32" if (_version.major, _version.minor) >= (3, 8) else tensors.dtype
        self.logicals, self.buffers = {}, {}

        q = self.tensor(heads(w.Hq, w.Tq, w.dk), tensors.dtype, tensors.q)
        self.k, self.v = (self.tensor(shape, tensors.dtype, array) for shape, array in zip(self.kv_shapes, tensors.caches[0]))
        score_dtype = np.dtype(np.float32) if score_type == "f32" else tensors.q.dtype
        scale = self.tensor((1,), score_type, _cast(np.array([w.scale]), score_dtype))
        operations = []
        s = self.tensor(scores, score_type)
        operations.append(self.operation(_MATMUL, [q, self.k], s, transpose_b=True))
        scaled = self.tensor(scores, score_type)
        operations.append(self.operation(_MULTIPLY, [s, scale], scaled))
        bias, visible = tensors.total_bias(), tensors.visibility(causal_too=True)
        if bias is not None or visible is not None:
            added = np.zeros((1, 1, 1, w.Tk)) if bias is None else bias
            added = added if visible is None else np.where(visible, added, _HIDDEN)
            added = np.broadcast_to(added, (*added.shape[:2], w.Tq, w.Tk))
            if w.group > 1:
                added = added.reshape(added.shape[0], -1, 1 if added.shape[1] == 1 else w.group, w.Tq, w.Tk)
            masked = self.tensor(scores, score_type)
            operations.append(self.operation(_ADD, [scaled, self.tensor(added.shape, score_type, _cast(added, score_dtype))], masked))
            scaled = masked
        p = self.tensor(scores, tensors.dtype)
        operations.append(self.operation(_SOFTMAX, [scaled], p, axis=-1))
        self.o = self.tensor(heads(w.Hq, w.Tq, w.dv), tensors.dtype)
        operations.append(self.operation(_MATMUL, [p, self.v], self.o))
        self.compile(operations)

    def tensor(self, shape, dtype, array=None):
        """The id of a logical tensor, and its memory where it has any before it is known which tensors stay inside of a partition."""
        number = len(self.logicals)
        logical, dims = _Logical(), (ctypes.c_int64 * _MAX_DIMS)(*shape)
        _call("dnnl_graph_logical_tensor_init_with_dims", ctypes.byref(logical), ctypes.c_size_t(number), _TYPES[dtype], len(shape), dims, _STRIDED, 0)
        self.logicals[number] = logical
        if array is not None:
            self.buffers[number] = array
        return number

    def operation(self, kind, inputs, output, transpose_b=False, axis=None):
        number = max(inputs + [output])
        operation = _new("dnnl_graph_op_create", ctypes.c_size_t(number), kind, f"op{number}".encode())
        for name, tensors in (("input", inputs), ("output", [output])):
            for tensor in tensors:
                _call(f"dnnl_graph_op_add_{name}", operation, ctypes.byref(self.logicals[tensor]))
        if transpose_b:
            _call("dnnl_graph_op_set_attr_bool", operation, _TRANSPOSE_B, ctypes.byref(ctypes.c_uint8(1)), ctypes.c_size_t(1))
        if axis is not None:
            _call("dnnl_graph_op_set_attr_s64", operation, _AXIS, ctypes.byref(ctypes.c_int64(axis)), ctypes.c_size_t(1))
        return operation

    def compile(self, operations):
        self.engine = _new("dnnl_engine_create", _CPU, ctypes.c_size_t(0))
        self.stream = _new("dnnl_stream_create", self.engine, _IN_ORDER)
        graph = _new("dnnl_graph_graph_create", _CPU)
        for operation in operations:
            _call("dnnl_graph_add_op", graph, operation)
        _call("dnnl_graph_graph_finalize", graph)
        _call("dnnl_graph_graph_filter", graph, _FUSION)
        count = ctypes.c_size_t()
        _call("dnnl_graph_graph_get_partition_num", graph, ctypes.byref(count))
        partitions = (ctypes.c_void_p * count.value)()
        _call("dnnl_graph_graph_get_partitions", graph, count, partitions)
        self.steps = [self.step(ctypes.c_void_p(partition)) for partition in partitions]
        self.notes = {"partitions": count.value}

    def step(self, partition):
        """(compiled partition, ids of its inputs, of its outputs)"""
        ports = []
        for side in ("input", "output"):
            count = ctypes.c_size_t()
            _call(f"dnnl_graph_partition_get_{side}_ports_num", partition, ctypes.byref(count))
            logicals = (_Logical * count.value)()
            _call(f"dnnl_graph_partition_get_{side}_ports", partition, count, logicals)
            ports.append([logical.id for logical in logicals])
        compiled = _new("dnnl_graph_compiled_partition_create", partition)
        arrays = [(ctypes.POINTER(_Logical) * len(ids))(*(ctypes.pointer(self.logicals[n]) for n in ids)) for ids in ports]
        sizes = [ctypes.c_size_t(len(ids)) for ids in ports]
        _call("dnnl_graph_partition_compile", partition, compiled, sizes[0], arrays[0], sizes[1], arrays[1], self.engine)
        for number in ports[0] + ports[1]:
            if number not in self.buffers:
                shape = self.logicals[number].dims[: self.logicals[number].ndims]
                f32 = self.logicals[number].data_type == _TYPES["f32"]
                self.buffers[number] = np.empty(shape, np.float32 if f32 else self.tensors.q.dtype)
        return compiled, [self.bound(ids) for ids in self.rotations(ports[0])], self.bound(ports[1])

    def rotations(self, ids):
        """The memory of a partition's inputs for each copy of K and V."""
        for k, v in self.tensors.caches:
            yield {number: {self.k: k, self.v: v}.get(number, self.buffers[number]) for number in ids}

    def bound(self, ids):
        buffers = ids if isinstance(ids, dict) else {number: self.buffers[number] for number in ids}
        tensors = [
            _new("dnnl_graph_tensor_create", ctypes.byref(self.logicals[number]), self.engine, ctypes.c_void_p(array.ctypes.data))
            for number, array in buffers.items()
        ]
        return ctypes.c_size_t(len(tensors)), (ctypes.c_void_p * len(tensors))(*(t.value for t in tensors))

    def run(self, i):
        for compiled, inputs, outputs in self.steps:
            _call("dnnl_graph_compiled_partition_execute", compiled, self.stream, *inputs[i % len(inputs)], *outputs)
        _call("dnnl_stream_wait", self.stream)

    def out(self):
        return self.buffers[self.o].reshape(self.w.B, self.w.Hq, self.w.Tq, self.w.dv).astype(np.float32)
