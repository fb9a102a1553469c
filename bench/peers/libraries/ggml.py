"""ggml's flash attention, driven through its C interface: the shared libraries that llama-cpp-python brings, or those in the folder FOVEA_GGML."""

import ctypes
import importlib.metadata
import importlib.util
import os

import numpy as np

from libraries import refuse

TYPES = {"f32": 0, "f16": 1, "bf16": 30}  # enum ggml_type
_SUCCESS = 0  # enum ggml_status
_OVERHEAD = 16 << 20  # of a context: tensors' heads and graphs


class _InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class _Plan(ctypes.Structure):
    """struct ggml_cplan. Versions differ in what follows the threads, which stays as the library set it."""

    _fields_ = [("work_size", ctypes.c_size_t), ("work_data", ctypes.c_void_p), ("threads", ctypes.c_int), ("rest", ctypes.c_char * 116)]


def _folder():
    if os.environ.get("FOVEA_GGML"):
        return os.environ["FOVEA_GGML"]
    found = importlib.util.find_spec("llama_cpp")
    if found is None:
        raise ImportError("llama-cpp-python is not installed")
    return os.path.join(os.path.dirname(found.origin), "lib")


def _open():
    try:
        base, cpu = (ctypes.CDLL(os.path.join(_folder(), f"lib{name}.so"), ctypes.RTLD_GLOBAL) for name in ("ggml-base", "ggml-cpu"))
    except OSError as error:
        raise ImportError(f"ggml's libraries cannot be loaded: {error}") from None
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    signatures = [
        (base.ggml_init, pointer, [_InitParams]),
        (base.ggml_free, None, [pointer]),
        (base.ggml_new_tensor_4d, pointer, [pointer, ctypes.c_int, integer, integer, integer, integer]),
        (base.ggml_get_data, pointer, [pointer]),
        (base.ggml_nbytes, ctypes.c_size_t, [pointer]),
        (base.ggml_flash_attn_ext, pointer, [pointer] * 5 + [ctypes.c_float] * 3),
        (base.ggml_flash_attn_ext_add_sinks, None, [pointer, pointer]),
        (base.ggml_new_graph, pointer, [pointer]),
        (base.ggml_build_forward_expand, None, [pointer, pointer]),
        (cpu.ggml_cpu_init, None, []),
        (cpu.ggml_graph_plan, _Plan, [pointer, ctypes.c_int, pointer]),
        (cpu.ggml_graph_compute, ctypes.c_int, [pointer, ctypes.POINTER(_Plan)]),
    ]
    for function, result, arguments in signatures:
        function.restype, function.argtypes = result, arguments
    cpu.ggml_cpu_init()
    return base, cpu


_base, _cpu = _open()


def versions():
    try:
        return {"llama-cpp-python": importlib.metadata.version("llama-cpp-python")}
    except importlib.metadata.PackageNotFoundError:
        return {"ggml": _version()}


def _version():
    _base.ggml_version.restype = ctypes.c_char_p
    return _base.ggml_version().decode()


def settings(threads):
    return {"threads": threads, "ggml": _version(), "q": "f32, rounded to the type of K by ggml"}


def prepare(kind, tensors, threads):
    return Case(tensors, threads)


class Case:
    def __init__(self, tensors, threads):
        w = tensors.workload
        self.w, self.threads = w, threads
        refuse(w.dk % 32 and tensors.dtype != "f32", "rows of K must be a multiple of 32, as it is driven here")
        self.computed = self.accumulates = tensors.dtype
        if tensors.dtype == "bf16":
            self.accumulates = "f32"  # of f16 alone it adds p·v in the type of V
        self.notes = {"q": "f32"}

        bias, visible = tensors.total_bias(), tensors.visibility(causal_too=True)
        mask = None
        if bias is not None or visible is not None:
            mask = np.zeros((1, 1, w.Tq, w.Tk)) if bias is None else bias
            mask = (mask if visible is None else np.where(visible, mask, -np.inf)).astype(np.float16)
            mask = np.ascontiguousarray(np.broadcast_to(mask, (*mask.shape[:2], w.Tq, w.Tk)))
        arrays = [tensors.q] * 2 + [array for cache in tensors.caches for array in cache] + ([] if mask is None else [mask])
        size = sum(array.nbytes for array in arrays) + len(tensors.caches) * 4 * w.B * w.Tq * w.Hq * w.dv + 4 * tensors.q.size
        self.context = _base.ggml_init(_InitParams(size + _OVERHEAD, None, False))
        q = self.new(tensors.q.astype(np.float32), "f32")
        mask_tensor = None if mask is None else self.new(mask, "f16")
        sinks = None if tensors.sinks is None else self.new(tensors.sinks, "f32")
        self.graphs = [self.graph(q, self.new(k, tensors.dtype), self.new(v, tensors.dtype), mask_tensor, sinks) for k, v in tensors.caches]

    def new(self, array, dtype):
        """A tensor of the context: ggml's axes are the reverse of NumPy's."""
        axes = [1] * (4 - array.ndim) + list(array.shape)
        tensor = _base.ggml_new_tensor_4d(self.context, TYPES[dtype], *axes[::-1])
        ctypes.memmove(_base.ggml_get_data(tensor), np.ascontiguousarray(array).ctypes.data, array.nbytes)
        return tensor

    def graph(self, q, k, v, mask, sinks):
        result = _base.ggml_flash_attn_ext(self.context, q, k, v, mask, self.w.scale, 0.0, self.w.softcap)
        if sinks is not None:
            _base.ggml_flash_attn_ext_add_sinks(result, sinks)
        graph = _base.ggml_new_graph(self.context)
        _base.ggml_build_forward_expand(graph, result)
        plan = _cpu.ggml_graph_plan(graph, self.threads, None)
        work = np.empty(plan.work_size + 64, np.uint8)
        plan.work_data = work.ctypes.data
        return graph, plan, work, result

    def run(self, i):
        graph, plan, _, _ = self.graphs[i % len(self.graphs)]
        if _cpu.ggml_graph_compute(graph, ctypes.byref(plan)) != _SUCCESS:
            raise RuntimeError("ggml_graph_compute failed")

    def out(self):
        w = self.w
        data = ctypes.cast(_base.ggml_get_data(self.graphs[0][3]), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(data, (w.B, w.Tq, w.Hq, w.dv)).transpose(0, 2, 1, 3).copy()

    def __del__(self):
        if getattr(self, "context", None):
            _base.ggml_free(self.context)
