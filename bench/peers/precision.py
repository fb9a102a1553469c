"""Errors against the number of keys: rows in which long sums of f32 lose what counts. Random numbers would hide that, since their errors cancel.

    ./dev peers precision                                 # 1K to 1M keys: bench/records/precision-CPU.jsonl and .md, bench/pictures
    ./dev peers precision --peers fovea,torch-flash --most 65536 --out build/precision.jsonl
"""

import argparse
import dataclasses
import os

import numpy as np

import machine
import workloads
from tensors import DTYPES

FEWEST, MOST = 1 << 10, 1 << 20  # keys
CHANNELS = 64
QUERIES = 32
SEEDS = 5
ONE_OF_EACH = ("fovea", "torch-flash", "ort-mha", "openvino", "ggml", "onednn-graph")
PATTERNS = {
    "equal": "equal scores, V of two values in turns",
    "dominant": "one key of score 0, the others normal around −17, V near 1",
}


@dataclasses.dataclass
class Structured:
    """What libraries ask of `tensors.Tensors`: one head, all queries alike, scores exact in any order of the channels."""

    pattern: str
    keys: int
    dtype: str
    seed: int
    slopes: np.ndarray = None
    sinks: np.ndarray = None
    bias: np.ndarray = None

    def __post_init__(self):
        w = self.workload = workloads.parse(f"1,1,{QUERIES}x{self.keys},{CHANNELS}")
        random = np.random.default_rng(self.seed)
        scores = np.zeros(self.keys)
        v = np.empty((self.keys, CHANNELS))
        if self.pattern == "equal":
            v[0::2], v[1::2] = random.uniform(0.5, 1.5, (2, CHANNELS))
            v[0::2, 0], v[1::2, 0] = 0.3, 0.7
        else:
            scores[1:] = random.normal(-17, 0.5, self.keys - 1)
            v[:] = random.normal(1, 0.3, v.shape)
        k = np.zeros((self.keys, CHANNELS))
        k[np.arange(self.keys), np.arange(self.keys) % CHANNELS] = scores
        dtype = DTYPES[self.dtype]
        self.q = np.full((1, 1, QUERIES, CHANNELS), 1 / w.scale, dtype)  # a power of two
        self.caches = [(k.astype(dtype)[None, None], v.astype(dtype)[None, None])]

    def mask(self):
        return None

    def visibility(self, causal_too):
        return None

    def total_bias(self):
        return None

    def error(self, out):
        """The largest |error| of out [1, 1, QUERIES, CHANNELS], in units of max|v|."""
        k, v = (array[0, 0].astype(np.float64) for array in self.caches[0])
        scores = k.sum(axis=1)  # of one channel each
        p = np.exp(scores - scores.max())
        exact = p @ v / p.sum()
        return float(np.abs(out[0, 0].astype(np.float64) - exact).max() / np.abs(v).max())


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(prog="peers precision", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(ONE_OF_EACH))
    parser.add_argument("--dtypes", default="f32")
    parser.add_argument("--most", type=int, default=MOST, help="keys")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", help="another file than bench/records/precision-CPU.jsonl; the table and pictures go beside it")
    options = parser.parse_args(arguments)
    options.peers, options.dtypes = options.peers.split(","), options.dtypes.split(",")
    return options


def measure(options, log, start):
    """start(peer) → a process of that library."""
    for peer in options.peers:
        process = start(peer)
        answer = process.ask(do="hello")
        if "skipped" in answer:
            log.write({"kind": "skip", "peer": peer, "threads": 1, "reason": answer["skipped"]})
            process.stop()
            continue
        log.write({"kind": "peer", "peer": peer, "threads": 1, **answer})
        for dtype in options.dtypes:
            for pattern in PATTERNS:
                measure_pattern(options, log, process, pattern, dtype)
        process.stop()


def measure_pattern(options, log, process, pattern, dtype):
    keys = FEWEST
    while keys <= options.most:
        case = {"peer": process.peer, "dtype": dtype, "pattern": pattern, "Tk": keys}
        errors = []
        for seed in range(options.seeds):
            answer = process.ask(do="error", pattern=pattern, keys=keys, dtype=dtype, seed=seed)
            if "skipped" in answer:
                log.write({"kind": "skip", "threads": 1, "workload": f"{pattern} {keys}", **case, "reason": answer["skipped"]})
                return
            errors.append(answer["error"])
        log.write({"kind": "precision", **case, "computed": answer["computed"], "errors": errors})
        log.say(f"{process.peer} {dtype} {pattern} {keys}: {max(errors):.2g}")
        keys *= 2


class Results:
    def __init__(self, records):
        self.records = records
        self.machine = next((r for r in records if r["kind"] == "machine"), {})
        self.lines = [r for r in records if r["kind"] == "precision"]

    def dtypes(self):
        return list(dict.fromkeys(r["dtype"] for r in self.lines))

    def peers(self, dtype):
        return list(dict.fromkeys(r["peer"] for r in self.lines if r["dtype"] == dtype))

    def curve(self, dtype, pattern, peer):
        """{keys: largest error over the seeds}"""
        found = (r for r in self.lines if (r["dtype"], r["pattern"], r["peer"]) == (dtype, pattern, peer))
        return {r["Tk"]: max(r["errors"]) for r in found}


def _keys(n):
    return f"{n >> 10}K" if n < 1 << 20 else f"{n >> 20}M"


def markdown(records):
    results = Results(records)
    m = results.machine
    versions = {name: version for r in records if r["kind"] == "peer" for name, version in r["versions"].items()}
    lines = [f"{m.get('cpu', 'unknown')}; {m.get('date', '')}, revision {m.get('revision')}.", ""]
    lines += ["Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".", ""]
    lines += ["The largest error of out over all channels and seeds, against float64, in units of max\\|v\\|.", ""]
    for dtype in results.dtypes():
        peers = results.peers(dtype)
        for pattern, title in PATTERNS.items():
            curves = {peer: results.curve(dtype, pattern, peer) for peer in peers}
            lines += [f"## {dtype}: {title}", "", "| keys | " + " | ".join(peers) + " |", "|" + "---|" * (1 + len(peers))]
            for keys in sorted({keys for curve in curves.values() for keys in curve}):
                cells = [f"{curves[peer][keys]:.1e}" if keys in curves[peer] else "–" for peer in peers]
                lines.append(f"| {_keys(keys)} | " + " | ".join(cells) + " |")
            lines.append("")
    skipped = [r for r in records if r["kind"] == "skip"]
    if skipped:
        lines += ["## Left out", ""] + [f"- {r['peer']}{' ' + r['workload'] if 'workload' in r else ''}: {r['reason']}" for r in skipped] + [""]
    return "\n".join(lines)


def record_file(root):
    return os.path.join(root, "bench", "records", f"precision-{machine.file_name(machine.cpu_name())}.jsonl")
