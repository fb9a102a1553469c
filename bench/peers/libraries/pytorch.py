"""PyTorch: its flash kernel; the same with the query heads of a group as more rows of one head; and attention written out, with stored scores."""

import numpy as np
import torch
import torch.nn.functional as F

from libraries import refuse

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_FLASH = 1  # of torch.nn.attention.SDPBackend


def versions():
    return {"torch": torch.__version__}


def settings(threads):
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    build = torch.__config__.show().splitlines()
    return {
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "mkl": next((line.strip(" -") for line in build if "Math Kernel" in line), "none"),
        "onednn": next((line.strip(" -") for line in build if "MKL-DNN" in line), "none"),
    }


def prepare(kind, tensors, threads):
    return {"flash": Flash, "folded": Folded, "unfused": Unfused}[kind](tensors)


def _tensor(array, dtype):
    """Without a copy; NumPy's bf16 goes by its bits."""
    if dtype == "bf16" and array.dtype.itemsize == 2:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class _Case:
    def __init__(self, tensors):
        self.tensors, self.w = tensors, tensors.workload
        self.type = TYPES[tensors.dtype]
        self.q = _tensor(tensors.q, tensors.dtype)
        self.caches = [(_tensor(k, tensors.dtype), _tensor(v, tensors.dtype)) for k, v in tensors.caches]
        self.computed = tensors.dtype
        self.notes = {}
        self.result = None

    def out(self):
        return self.result.float().reshape(self.w.B, self.w.Hq, self.w.Tq, self.w.dv).numpy()


class Flash(_Case):
    def __init__(self, tensors):
        super().__init__(tensors)
        w = self.w
        refuse(w.softcap or w.sinks, "scaled_dot_product_attention has neither softcap nor sinks")
        bias = tensors.total_bias()
        own_causal = w.causal and w.Tq == w.Tk and not (w.mask or w.window or bias is not None)
        visible = tensors.visibility(causal_too=not own_causal)
        mask = None if visible is None else torch.from_numpy(visible)
        if bias is not None:
            bias = torch.from_numpy(bias).to(self.type)
            mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
        self.options = {"attn_mask": mask, "is_causal": own_causal, "enable_gqa": w.group > 1}
        self.require_flash(self.q)

    def require_flash(self, q):
        chosen = torch._fused_sdp_choice(q, *self.caches[0], **self.options)
        refuse(chosen != _FLASH, "PyTorch has no flash kernel for this and goes to its unfused one")

    def run(self, i):
        k, v = self.caches[i % len(self.caches)]
        self.result = F.scaled_dot_product_attention(self.q, k, v, **self.options)


class Folded(Flash):
    def __init__(self, tensors):
        w = tensors.workload
        refuse(w.group == 1, "no groups to fold")
        by_row = w.causal or w.window or w.alibi or w.mask not in ("", "padding") or w.bias not in ("", "keys")
        refuse(by_row, "what depends on the row or the head cannot be folded")
        super().__init__(tensors)
        self.options["enable_gqa"] = False
        self.q = self.q.view(w.B, w.Hkv, w.group * w.Tq, w.dk)
        self.require_flash(self.q)


class Unfused(_Case):
    """softmax(scale·Q·Kᵀ)·V, in place where that is possible."""

    COPIES = 2  # of the score matrix at once: scores and weights

    def __init__(self, tensors):
        super().__init__(tensors)
        w = self.w
        needed = self.COPIES * w.B * w.Hq * w.Tq * w.Tk * tensors.q.itemsize
        refuse(needed > 0.8 * _available_bytes(), f"the score matrix needs {needed / 2**30:.0f} GiB, more than is free")
        visible, bias = tensors.visibility(causal_too=True), tensors.total_bias()
        self.hidden = None if visible is None else ~torch.from_numpy(visible)
        self.bias = None if bias is None else torch.from_numpy(bias).to(self.type)
        self.sinks = None
        if w.sinks:
            self.sinks = torch.from_numpy(tensors.sinks).to(self.type)[None, :, None, None].expand(w.B, w.Hq, w.Tq, 1)

    def run(self, i):
        w = self.w
        k, v = self.caches[i % len(self.caches)]
        q = (self.q * w.scale).view(w.B, w.Hkv, w.group * w.Tq, w.dk)
        s = (q @ k.transpose(-1, -2)).view(w.B, w.Hq, w.Tq, w.Tk)
        if w.softcap:
            s.div_(w.softcap).tanh_().mul_(w.softcap)
        if self.bias is not None:
            s.add_(self.bias)
        if self.hidden is not None:
            s.masked_fill_(self.hidden, float("-inf"))
        if self.sinks is None:
            p = torch.softmax(s, -1)
        else:
            p = torch.softmax(torch.cat((s, self.sinks), -1), -1)[..., :-1]
        self.result = p.reshape(w.B, w.Hkv, w.group * w.Tq, w.Tk) @ v


def _available_bytes():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
