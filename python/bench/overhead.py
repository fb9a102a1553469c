"""What a call from Python costs over the same call in C++: python python/bench/overhead.py

The problem is 1,1,1×64,64, so small that the way to the library is what is measured. Least of many rounds that alternate between the ways of calling, in microseconds.
"""

import platform
import time

import numpy as np

import fovea
from fovea import _core

LOOPS, ROUNDS = 200, 300


def cpu():
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def main():
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, 1, 1, 64), dtype=np.float32)
    k, v = (rng.standard_normal((1, 1, 64, 64), dtype=np.float32) for _ in range(2))
    out = np.empty_like(q)
    plan = fovea.Plan(q, k, v)
    ways = {
        "plan, NumPy, out given": ("run", lambda: plan.run(q, k, v, out=out)),
        "plan, NumPy": ("run", lambda: plan.run(q, k, v)),
        "one-shot, NumPy": ("call", lambda: fovea.attention(q, k, v)),
    }
    try:
        import torch

        torch.set_grad_enabled(False)
        tq, tk, tv = (torch.from_numpy(x) for x in (q, k, v))
        ways["plan, PyTorch"] = ("run", lambda: plan.run(tq, tk, tv))
        ways["one-shot, PyTorch"] = ("call", lambda: fovea.attention(tq, tk, tv))
        from fovea import torch as adapter

        sdpa = torch.nn.functional.scaled_dot_product_attention
        short = tv[..., :32].contiguous()  # PyTorch has no kernel for it
        mask = torch.ones(1, 64, dtype=torch.bool)  # which PyTorch turns into floats before its kernel, and Fovea's, sees it

        ways["fovea.torch, the operator"] = ("call", lambda: adapter.scaled_dot_product_attention(tq, tk, tv))
        ways["patched"] = ("patched", lambda: sdpa(tq, tk, tv))
        ways["patched, a boolean mask"] = ("patched", lambda: sdpa(tq, tk, tv, mask))
        ways["patched, dv ≠ dk"] = ("patched", lambda: sdpa(tq, tk, short))
        ways["patched, three axes"] = ("patched", lambda: sdpa(tq[0], tk[0], tv[0]))
        ways["PyTorch's own"] = (None, lambda: sdpa(tq, tk, tv))
        ways["PyTorch's own, a boolean mask"] = (None, lambda: sdpa(tq, tk, tv, mask))
        ways["PyTorch's own, dv ≠ dk"] = (None, lambda: sdpa(tq, tk, short))
        ways["PyTorch's own, three axes"] = (None, lambda: sdpa(tq[0], tk[0], tv[0]))
    except ImportError:
        pass

    base = {"run": 1e9, "call": 1e9}
    least = dict.fromkeys(ways, 1e9)

    def measure(names):
        for name in names:
            call = ways[name][1]
            start = time.perf_counter()
            for _ in range(LOOPS):
                call()
            least[name] = min(least[name], (time.perf_counter() - start) / LOOPS * 1e6)

    patched = [name for name, (kind, _) in ways.items() if kind == "patched"]
    for _ in range(ROUNDS):
        base["run"] = min(base["run"], plan._time_run(q, k, v, LOOPS) * 1e6)
        base["call"] = min(base["call"], _core._time_attention(q, k, v, LOOPS) * 1e6)
        measure([name for name in ways if name not in patched])
        if patched:
            with adapter.patch():
                measure(patched)

    print(f"{cpu()}, {plan.isa}, Python {platform.python_version()}, NumPy {np.__version__}")
    print(f"{'':30}{'µs':>8}{'over C++':>12}")
    print(f"{'C++, a plan run':30}{base['run']:8.2f}\n{'C++, one-shot':30}{base['call']:8.2f}")
    for name, (kind, _) in ways.items():
        over = f"{least[name] - base['call' if kind == 'patched' else kind]:12.2f}" if kind else ""
        print(f"{name:30}{least[name]:8.2f}{over}")


if __name__ == "__main__":
    main()
