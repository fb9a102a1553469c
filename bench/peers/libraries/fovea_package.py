"""Fovea through its Python package: a plan made once, outputs given."""

import fovea
import numpy as np

from tensors import DTYPES


def versions():
    return {"fovea": fovea.__version__}


def settings(threads):
    fovea.set_threads(threads)
    return {"threads": fovea.get_threads(), "isa": fovea.active_target(), "targets": " ".join(fovea.targets())}


def prepare(kind, tensors, threads):
    return Case(tensors, threads)


class Case:
    def __init__(self, tensors, threads):
        w = tensors.workload
        k, v = tensors.caches[0]
        self.q = tensors.q
        self.caches = [(k, k[..., : w.dv]) for k, _ in tensors.caches] if w.values_in_keys else tensors.caches
        self.result = np.empty((w.B, w.Hq, w.Tq, w.dv), DTYPES[tensors.dtype])
        options = {
            "causal": "bottom-right" if w.causal else None,
            "window": (w.window - 1, 0) if w.window else None,
            "query_offset": w.position(0) if (w.alibi or w.window) and not w.causal else None,
            "softcap": w.softcap or None,
            "alibi_slopes": tensors.slopes if w.alibi else None,
            "sinks": tensors.sinks,
            "mask": tensors.mask(),
            "bias": tensors.bias,
        }
        self.options = {name: value for name, value in options.items() if value is not None}
        k, v = self.caches[0]
        self.plan = fovea.Plan(self.q, k, v, out=self.result, threads=threads, **self.options)
        # Runs take arrays, not what was planned.
        self.arrays = {name: self.options[name] for name in ("alibi_slopes", "sinks", "mask", "bias") if name in self.options}
        self.computed = self.plan.product
        self.notes = {"isa": self.plan.isa, "engine": self.plan.engine, "product": self.plan.product}
        self.notes["workspace_bytes"] = self.plan.workspace_bytes(threads)

    def run(self, i):
        k, v = self.caches[i % len(self.caches)]
        self.plan.run(self.q, k, v, out=self.result, **self.arrays)

    def out(self):
        return self.result.astype(np.float32)
