"""The libraries that are compared. A module each; all of them offer

    versions()                                          {package: version}; raises ImportError where the library is missing
    settings(threads)                                   what was chosen, in words, by name
    prepare(kind, tensors, threads) -> case             raises Unsupported with the reason where the library cannot do it

where a case has

    run(i)        one attention over copy i mod len(tensors.caches) of K and V, outputs and plans kept
    out()         the last result as f32 [B, Hq, Tq, dv]
    computed      the type to which it rounds on its way: "f32", "f16" or "bf16"
    accumulates   the type of its sums, where that is not "f32"
    notes         {name: value} that belongs beside the times: which kernel ran
"""

import importlib

PEERS = {  # name: (module, kind)
    "fovea": ("fovea_package", ""),
    "torch-flash": ("pytorch", "flash"),
    "torch-folded": ("pytorch", "folded"),
    "torch-unfused": ("pytorch", "unfused"),
    "ort-mha": ("onnx_runtime", "MultiHeadAttention"),
    "ort-gqa": ("onnx_runtime", "GroupQueryAttention"),
    "ort-attention": ("onnx_runtime", "Attention"),
    "openvino": ("open_vino", "plain"),
    "openvino-folded": ("open_vino", "folded"),
    "openvino-stateful": ("open_vino", "stateful"),
    "onednn-graph": ("onednn_graph", ""),
    "ggml": ("ggml", ""),
}


class Unsupported(Exception):
    """The library has no such attention, or not in this form."""


def load(peer):
    """(module, kind)"""
    module, kind = PEERS[peer]
    return importlib.import_module(f"libraries.{module}"), kind


def refuse(condition, reason):
    if condition:
        raise Unsupported(reason)
