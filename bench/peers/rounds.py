"""Times libraries in turns: one slice of each for a workload, again and again, so that noise hits all of them alike."""

import json
import os
import select
import subprocess
import sys
import time

import libraries

HERE = os.path.dirname(os.path.abspath(__file__))
PREPARE_LIMIT = 600.0  # seconds; a process that takes longer is ended
SLICE_LIMIT = 300.0
FIRST = "1,1,64,64"


class Process:
    """A worker of one library, started when it is first asked and again after it has died."""

    def __init__(self, peer, threads):
        self.peer, self.threads, self.child = peer, threads, None

    def start(self):
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        environment = {**os.environ, **{name: str(self.threads) for name in names}}
        command = [sys.executable, HERE, "worker", self.peer, str(self.threads)]
        self.child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def ask(self, limit=PREPARE_LIMIT, **command):
        if self.child is None:
            self.start()
        try:
            self.child.stdin.write(json.dumps(command).encode() + b"\n")
            self.child.stdin.flush()
            ready, _, _ = select.select([self.child.stdout], [], [], limit)
            line = self.child.stdout.readline() if ready else b""
        except BrokenPipeError:
            ready, line = True, b""
        if line:
            return json.loads(line)
        self.stop()
        return {"skipped": "the process ended by itself" if ready else f"no answer within {limit:.0f} s"}

    def stop(self):
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            self.child.stdin.close()
            self.child.stdout.close()
            self.child = None


class Suite:
    """options: peers, dtypes, rounds, seconds, rotate_bytes; write(line) takes records."""

    def __init__(self, options, threads, write, say):
        self.options, self.threads, self.write, self.say = options, threads, write, say
        self.processes = []

    def __enter__(self):
        for peer in self.options.peers:
            process = Process(peer, self.threads)
            answer = process.ask(do="hello")
            if "skipped" in answer:
                self.skip(peer, answer["skipped"])
                process.stop()
                continue
            self.write({"kind": "peer", "peer": peer, "threads": self.threads, **answer})
            self.processes.append(process)
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.stop()

    def skip(self, peer, reason, **more):
        self.write({"kind": "skip", "peer": peer, "threads": self.threads, **more, "reason": reason})

    def run(self, workload, dtype, rounds, seconds, peers=None, group="main"):
        """All libraries, or those named, on one workload."""
        key = {"group": group, "workload": workload.name, "dtype": dtype}
        ready = []
        for process in self.processes:
            if peers is not None and process.peer not in peers:
                continue
            if group == "long":  # memory is measured: none is left from before, and all that the first call of a process loads has been loaded
                process.stop()
                process.ask(do="prepare", workload=FIRST, dtype=dtype, rotate_bytes=0)
            answer = process.ask(do="prepare", workload=workload.name, dtype=dtype, rotate_bytes=self.options.rotate_bytes)
            if "skipped" in answer:
                self.skip(process.peer, answer["skipped"], **key, **({"wrong": True} if answer.get("wrong") else {}))
                process.ask(do="drop")
                continue
            shape = {letter: getattr(workload, letter) for letter in ("B", "Hq", "Hkv", "Tq", "Tk", "dk", "dv")}
            size = {"flops": workload.flops(), "kv_bytes": workload.kv_bytes(dtype)}
            self.write({"kind": "case", "peer": process.peer, "threads": self.threads, **key, **shape, **size, **answer})
            ready.append(process)
        for number in range(rounds):
            for process in _turned(ready, number):
                answer = process.ask(limit=SLICE_LIMIT, do="slice", seconds=seconds)
                if "skipped" in answer:
                    self.skip(process.peer, answer["skipped"], **key)
                    ready = [other for other in ready if other is not process]
                    continue
                self.write({"kind": "round", "peer": process.peer, "threads": self.threads, **key, "round": number, **answer})
        for process in ready:
            process.ask(do="drop")
        self.say(f"{workload.name} {dtype}, {self.threads} thread{'s' if self.threads > 1 else ''}: {' '.join(p.peer for p in ready)}")


def _turned(items, number):
    """Each round begins with another one, so that nobody always follows the same neighbour after a pause."""
    at = number % len(items) if items else 0
    return items[at:] + items[:at]


class Log:
    """Records in a file, written as they come, under its name when it is whole."""

    def __init__(self, path):
        self.path, self.partial = path, path + ".partial"
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        self.file = open(self.partial, "w")
        self.start = time.monotonic()

    def write(self, line):
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def say(self, text):
        print(f"{time.monotonic() - self.start:7.0f} s  {text}", file=sys.stderr, flush=True)

    def close(self):
        self.file.close()
        os.replace(self.partial, self.path)


def all_peers():
    return list(libraries.PEERS)
