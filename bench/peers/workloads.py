"""Workloads by name, as src/measure/workload.cc has them: letters, modifiers, visible pairs and flops. Knows no library and makes no tensors."""

import dataclasses
import math

import numpy as np

SOFTCAP = 20.0
PADDING_KEYS = 100
BAND_KEYS = 256
BYTES = {"f32": 4, "f16": 2, "bf16": 2}

_NAMED = {
    "P1": "1,12,512,64",
    "P2": "1,8,2048,64,causal",
    "P3": "1,4,4096,128,causal",
    "P4": "1,32/8,1024,128,causal",
    "P5": "1,8,256x4096,64",
    "P6": "64,12,128,32",
    "D1": "1,32/8,1x4096,128",
    "D2": "8,32/8,1x2048,128",
    "D3": "1,32/8,1x32768,128",
    "F1": "1,1,4096,128",
    "X0": "1,8,1024,64",
    "X1": "1,8,1024,64+trimask",
    "X2": "1,8,1024,64+distbias",
    "X3": "1,8,1024,64+padmask",
    "X4": "1,8,1024,64,32",
    "X5": "1,8,1024,64,128",
    "X6": "1,8,1024,72",
    "X7": "1,8,1024,65",
    "X8": "1,8,1024,80",
    "X9": "1,8,1000,64",
    "X10": "1,8,1024,256",
    "X11": "1,8,1024,64,causal",
    "X12": "1,8,1024,16",
    "X13": "1,4/1,512,576,512,causal+mla",
    "X14": "1,32/8,16x4096,128",
    "X15": "64,12,16,32",
    "X16": "1,8,4096,64+bandmask",
    "X17": "1,8,1024,64+softcap",
}
SETS = {
    "main": [name for name in _NAMED if name[0] in "PD"],
    "prefill": [name for name in _NAMED if name[0] == "P"],
    "decode": [name for name in _NAMED if name[0] == "D"],
    "variants": [name for name in _NAMED if name[0] == "X"],
}
MASKS = {"mask": "random", "padmask": "padding", "trimask": "triangle", "bandmask": "band"}
BIASES = {"bias": "dense", "distbias": "distance", "keybias": "keys"}


@dataclasses.dataclass
class Workload:
    name: str
    B: int
    Hq: int
    Hkv: int
    Tq: int
    Tk: int
    dk: int
    dv: int
    causal: bool = False  # bottom-right: the last query sees every key
    window: int = 0  # keys that a query sees, the last one at its own position; 0: all
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    mask: str = ""  # random, padding, triangle, band
    bias: str = ""  # dense, distance, keys
    values_in_keys: bool = False  # V is the first dv channels of K

    @property
    def group(self):
        return self.Hq // self.Hkv

    @property
    def decode(self):
        """Few queries over a long cache: bound by reading K and V, which come from memory in a model of many layers."""
        return self.Tq <= 16 and self.Tq < self.Tk

    @property
    def scale(self):
        return 1 / math.sqrt(self.dk)

    @property
    def padding_keys(self):
        return min(PADDING_KEYS, self.Tk // 2)

    def position(self, i):
        return i + self.Tk - self.Tq

    def visible(self, i):
        """Which keys query i sees, [Tk]: mask, causal and window together."""
        j = np.arange(self.Tk)
        seen = self.mask_row(i)
        if self.causal or self.window:
            seen &= j <= self.position(i)
        if self.window:
            seen &= j > self.position(i) - self.window
        return seen

    def mask_row(self, i):
        """Of the boolean mask alone, [Tk]."""
        j = np.arange(self.Tk)
        if self.mask == "random":
            return _scatter((i * self.Tk + j + 1).astype(np.uint64)) % np.uint64(10) != 0
        if self.mask == "padding":
            return j < self.Tk - self.padding_keys
        if self.mask == "triangle":
            return j <= self.position(i)
        if self.mask == "band":
            return (j <= self.position(i)) & (j > self.position(i) - BAND_KEYS)
        return np.ones(self.Tk, bool)

    def pairs(self):
        """Visible (query, key) pairs of all query heads."""
        if not (self.mask or self.causal or self.window):
            return self.B * self.Hq * self.Tq * self.Tk
        return self.B * self.Hq * sum(int(self.visible(i).sum()) for i in range(self.Tq))

    def flops(self):
        """A multiplication and an addition for each product of q·k and p·v."""
        return 2 * self.pairs() * (self.dk + self.dv)

    def kv_bytes(self, dtype):
        channels = self.dk if self.values_in_keys else self.dk + self.dv
        keys = min(self.Tk, self.Tq + self.window - 1) if self.window else self.Tk
        return self.B * self.Hkv * keys * channels * BYTES[dtype]


def _scatter(n):
    """The finaliser of splitmix64 (Steele et al. 2014)."""
    n = (n ^ n >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    n = (n ^ n >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return n ^ n >> np.uint64(31)


def parse(text):
    """WORKLOAD[+MODIFIER]…, as `fovea bench` takes it. ValueError where it is not one."""
    name, *modifiers = text.split("+")
    shape, *own = _NAMED.get(name, name).split("+")
    parts = shape.split(",")
    causal = parts[-1] == "causal"
    if causal:
        parts.pop()
    try:
        heads, tokens = parts[1].split("/"), parts[2].split("x")
        B, dk, dv = int(parts[0]), int(parts[3]), int(parts[-1])
        Hq, Hkv, Tq, Tk = int(heads[0]), int(heads[-1]), int(tokens[0]), int(tokens[-1])
        if len(parts) not in (4, 5) or len(heads) > 2 or len(tokens) > 2 or min(B, Hq, Hkv, Tq, Tk, dk, dv) < 1:
            raise ValueError
    except (IndexError, ValueError):
        raise ValueError(f"workload {text!r}: expected {', '.join(_NAMED)} or B,Hq[/Hkv],Tq[xTk],d[,dv][,causal], then [+MODIFIER]…") from None
    if Hq % Hkv:
        raise ValueError(f"workload {text!r}: Hq = {Hq} is not a multiple of Hkv = {Hkv}")
    workload = Workload(text, B, Hq, Hkv, Tq, Tk, dk, dv, causal)
    for modifier in own + modifiers:
        _add(workload, modifier)
    return workload


def _add(w, modifier):
    key, _, value = modifier.partition("=")
    if key == "window" and value.isdecimal() and int(value) and not w.window:
        w.window = int(value)
    elif modifier == "softcap" and not w.softcap:
        w.softcap = SOFTCAP
    elif modifier in ("alibi", "sinks") and not getattr(w, modifier):
        setattr(w, modifier, True)
    elif modifier in MASKS and not w.mask:
        w.mask = MASKS[modifier]
    elif modifier in BIASES and not w.bias:
        w.bias = BIASES[modifier]
    elif modifier == "mla" and not w.values_in_keys and w.dv <= w.dk:
        w.values_in_keys = True
    else:
        raise ValueError(f"workload {w.name!r}: '+{modifier}' is unknown or contradicts what stands before it")


def parse_list(text):
    """Sets and named workloads separated by commas, or shapes separated by semicolons, as `fovea bench --workloads`."""
    workloads = []
    for item in text.split(";"):
        words = item.split(",")
        if all(word in SETS or word.split("+")[0] in _NAMED for word in words):
            for word in words:
                workloads += [parse(name) for name in SETS.get(word, [word])]
        else:
            workloads.append(parse(item))
    return workloads
