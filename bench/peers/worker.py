"""One library in a process of its own: reads commands as JSON lines, answers each with a JSON line.

    {"do": "hello"}                                         → {"versions", "settings"}
    {"do": "prepare", "workload", "dtype", "rotate_bytes"}  → what `prepare` below returns; the result has been checked
    {"do": "slice", "seconds"}                              → what `Timer.slice` returns
    {"do": "drop"}                                          → {}
    {"do": "error", "pattern", "keys", "dtype", "seed"}     → {"error", "computed"}: of precision.py's tensors

An answer may instead be {"skipped": reason}.
"""

import ctypes
import gc
import json
import os
import sys
import time

import libraries
import machine
import precision
import workloads
from checks import WrongResult, check
from tensors import Tensors

KEPT = 0.97  # of the wall time that a run on one thread must have had a core
LONG = 1.0  # seconds; runs beyond need no warming up


class Timer:
    """Runs of one case, a slice at a time."""

    def __init__(self, case, threads):
        self.case, self.threads = case, threads
        self.index, self.last = 0, 0.0

    def once(self):
        cpu, wall = time.process_time(), time.perf_counter()
        self.case.run(self.index)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.index += 1
        self.last = wall
        return wall, cpu

    def slice(self, seconds):
        """One run to warm the caches, which does not count, and then runs for that long, one at least. On one thread, runs that lost their core do not
        count either; where all did, the slice is noisy and times are CPU times."""
        if self.index == 0 or self.last < LONG:
            self.once()
        runs, start = [], time.perf_counter()
        while not runs or time.perf_counter() - start < seconds:
            runs.append(self.once())
        kept = [wall for wall, cpu in runs if self.threads > 1 or cpu >= KEPT * wall]
        times = sorted(kept or [min(run) for run in runs])
        cores = sum(cpu for _, cpu in runs) / sum(wall for wall, _ in runs)
        return {
            "median_s": times[len(times) // 2],
            "min_s": times[0],
            "runs": len(times),
            "dropped": len(runs) - len(kept),
            "noisy": not kept,
            "cores": round(cores, 3),  # CPU time over wall time
        }


def _memory(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))


def _return_free_memory():
    """To the system, so that what is allocated from here on counts, though it may lie where something else has been."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


class Worker:
    def __init__(self, peer, threads):
        self.threads = threads
        self.module, self.kind = libraries.load(peer)
        self.settings = self.module.settings(threads)
        self.timer = None

    def hello(self):
        return {"versions": self.module.versions(), "settings": self.settings}

    def prepare(self, workload, dtype, rotate_bytes):
        self.drop()
        tensors = Tensors(workloads.parse(workload), dtype, rotate_bytes)
        _return_free_memory()
        before = _memory("VmRSS")
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak starts from here
        case = self.module.prepare(self.kind, tensors, self.threads)
        self.timer = Timer(case, self.threads)
        self.timer.once()
        peak = max(0, _memory("VmHWM") - before)
        accumulates = getattr(case, "accumulates", "f32")
        answer = check(tensors, case.out(), case.computed, accumulates)
        answer |= {"computed": case.computed, "accumulates": accumulates, "copies": len(tensors.caches), "peak_bytes": peak}
        return answer | {"amx_permitted": machine.amx_permitted(), "notes": case.notes}

    def slice(self, seconds):
        return self.timer.slice(seconds)

    def error(self, pattern, keys, dtype, seed):
        self.drop()
        tensors = precision.Structured(pattern, keys, dtype, seed)
        case = self.module.prepare(self.kind, tensors, self.threads)
        case.run(0)
        return {"error": tensors.error(case.out()), "computed": case.computed}

    def drop(self):
        self.timer = None
        gc.collect()
        return {}


def reason(error):
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else ""
    return text[:300] if isinstance(error, (libraries.Unsupported, ImportError)) else f"{type(error).__name__}: {text}"[:300]


def serve(peer, threads):
    # Libraries print what they like; answers go where standard output was.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = None
    for line in sys.stdin:
        command = json.loads(line)
        do = command.pop("do")
        try:
            worker = worker or Worker(peer, threads)
            answer = getattr(worker, do)(**command)
        except WrongResult as error:
            answer = {"skipped": str(error), "wrong": True}
        except Exception as error:  # noqa: BLE001  whatever a library raises skips its case alone
            answer = {"skipped": reason(error)}
        print(json.dumps(answer), file=answers, flush=True)
