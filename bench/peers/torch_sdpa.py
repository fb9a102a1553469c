#!/usr/bin/env python3
"""Times PyTorch's scaled_dot_product_attention and `fovea bench` on the same workloads in the same minute, f32, and prints the ratio.

    python3 -m venv .venv && .venv/bin/pip install torch numpy
    ./dev build
    taskset -c 0 .venv/bin/python bench/peers/torch_sdpa.py                       # all workloads, one thread
    .venv/bin/python bench/peers/torch_sdpa.py --threads 2 --workloads P2,P3,P4

For each workload: half of PyTorch's runs, Fovea, the other half. Runs that lost the core (one thread: CPU time below 97 % of wall time) do not
count. Decode rotates over as many copies of K and V as exceed the caches, as `fovea bench` does. PyTorch's result is checked on sampled rows
against float64 first; Fovea checks its own.
"""
import argparse
import glob
import json
import math
import os
import subprocess
import sys
import time

try:
    import torch
except ImportError:
    torch = None

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# name: B, Hq, Hkv, Tq, Tk, d, causal; the same as in bench/workload.cc
WORKLOADS = {
    "P1": (1, 12, 12, 512, 512, 64, False),
    "P2": (1, 8, 8, 2048, 2048, 64, True),
    "P3": (1, 4, 4, 4096, 4096, 128, True),
    "P4": (1, 32, 8, 1024, 1024, 128, True),
    "P5": (1, 8, 8, 256, 4096, 64, False),
    "P6": (64, 12, 12, 128, 128, 32, False),
    "D1": (1, 32, 8, 1, 4096, 128, False),
    "D2": (8, 32, 8, 1, 2048, 128, False),
    "D3": (1, 32, 8, 1, 32768, 128, False),
}


def stream_bytes():
    """Bytes that do not fit into the caches: twice the last level, 256 MiB to 1 GiB."""
    sizes = []
    for path in glob.glob("/sys/devices/system/cpu/cpu0/cache/index*/size"):
        with open(path) as file:
            sizes.append(int(file.read().strip().rstrip("K")) << 10)
    return min(max([2 * size for size in sizes] + [256 << 20]), 1 << 30)


class Peer:
    """PyTorch on one workload."""

    def __init__(self, name, threads):
        B, Hq, Hkv, Tq, Tk, d, self.causal = WORKLOADS[name]
        self.threads = threads
        self.gqa = Hq != Hkv
        kv_bytes = 2 * B * Hkv * Tk * d * 4
        copies = math.ceil(stream_bytes() / kv_bytes) if Tq <= 16 < Tk else 1
        torch.manual_seed(1)
        self.q = torch.randn(B, Hq, Tq, d)
        self.kv = [(torch.randn(B, Hkv, Tk, d), torch.randn(B, Hkv, Tk, d))]
        self.kv += [(k.clone(), v.clone()) for k, v in self.kv * (copies - 1)]
        self.index = 0

    def run(self):
        k, v = self.kv[self.index % len(self.kv)]
        self.index += 1
        return torch.nn.functional.scaled_dot_product_attention(self.q, k, v, is_causal=self.causal, enable_gqa=self.gqa)

    def check(self):
        out = self.run()
        B, Hq, Tq, d = self.q.shape
        k, v = self.kv[0]
        for n in range(8):
            b, h, i = n % B, n * 7 % Hq, n * 2654435761 % Tq
            g = h // (Hq // k.shape[1])
            scores = k[b, g].double() @ self.q[b, h, i].double() / math.sqrt(d)
            if self.causal:
                scores[i + 1 :] = -math.inf
            expected = torch.softmax(scores, 0) @ v[b, g].double()
            error = (out[b, h, i].double() - expected).abs().max().item()
            if not error < 1e-4:
                sys.exit(f"PyTorch's result is wrong by {error}")

    def seconds(self, budget):
        """Times of runs that kept their core, or CPU times of all if hardly any did, as `fovea bench` does."""
        self.run()
        kept, all_runs = [], []
        start = time.perf_counter()
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            self.run()
            wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
            all_runs.append(wall if self.threads > 1 else cpu)
            if self.threads > 1 or cpu >= 0.97 * wall:
                kept.append(wall)
            elapsed = time.perf_counter() - start
            if elapsed >= budget and len(kept) >= 5 or elapsed >= 4 * budget:
                return kept if len(kept) >= 3 else all_runs


def median(values):
    return sorted(values)[len(values) // 2]


def fovea(options, name):
    command = [options.fovea, "bench", "--json", "--workloads", name, "--threads", str(options.threads), "--isa", options.isa]
    command += ["--seconds", str(options.seconds)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1, help="of timing for each side and workload")
    parser.add_argument("--isa", default="best", help="instruction set of Fovea")
    parser.add_argument("--fovea", default=os.path.join(ROOT, "build", "release", "fovea"), help="the program")
    parser.add_argument("--json", action="store_true", help="a JSON line for each workload")
    options = parser.parse_args()
    if torch is None:
        sys.exit("this script needs PyTorch: python3 -m venv .venv && .venv/bin/pip install torch numpy")
    torch.set_grad_enabled(False)
    torch.set_num_threads(options.threads)
    if not options.json:
        print(f"PyTorch {torch.__version__}, f32, {options.threads} thread(s); milliseconds\n")
        print(f"{'workload':8}  {'PyTorch':>9}  {'Fovea':>9}  {'ratio':>6}  {'of peak':>7}  {'of read':>7}")
    for name in options.workloads.split(","):
        peer = Peer(name, options.threads)
        peer.check()
        times = peer.seconds(options.seconds / 2)
        ours = fovea(options, name)
        times += peer.seconds(options.seconds / 2)
        theirs = median(times)
        ratio = theirs / ours["median_s"]
        noisy = ours["noisy"] or max(times) > 2 * min(times)
        if options.json:
            line = {"workload": name, "threads": options.threads, "torch": torch.__version__, "torch_median_s": theirs, "torch_min_s": min(times)}
            print(json.dumps({**line, "fovea_median_s": ours["median_s"], "fovea_min_s": ours["min_s"], "isa": ours["isa"], "ratio": ratio, "noisy": noisy}))
        else:
            print(
                f"{name:8}  {1e3 * theirs:9.3f}  {1e3 * ours['median_s']:9.3f}  {ratio:6.2f}  "
                f"{100 * (ours['share_of_peak'] or 0):6.0f}%  {100 * (ours['share_of_read'] or 0):6.0f}%{'  noisy' if noisy else ''}"
            )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
