"""Runs a function in several processes that talk to each other by gloo.

Processes are forked from a server that has imported PyTorch once: its import is most of what a process of a small test costs.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import time
import traceback
from unittest import mock

import torch

_PRELOAD = ["numpy", "torch", "torch.distributed.tensor.experimental", "torch.distributed.tensor.experimental._context_parallel._attention", "fovea.torch"]


def _rank(function, rank, size, folder, seconds, collective_seconds, arguments):
    import datetime

    import torch.distributed as dist

    torch.set_num_threads(1)
    stacks = (folder / f"{rank}.txt").open("w", encoding="utf-8")
    faulthandler.dump_traceback_later(0.9 * seconds, file=stacks)
    code = 1
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=collective_seconds))
        torch.save(function(rank, size, *arguments), folder / f"{rank}.pt")
        code = 0
    except BaseException:
        (folder / f"{rank}.txt").write_text(traceback.format_exc(), encoding="utf-8")
    os._exit(code)  # without the farewells of process groups, which wait for ranks that died


def said(call):
    """The error that a call ends in, as text."""
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return "nothing"


def run(function, size, folder, *arguments, seconds=60, collective_seconds=40, may_die=()):
    """What function(rank, size, *arguments) returns on each rank. The function is of a module that can be imported. A rank of may_die returns nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
        ranks = [context.Process(target=_rank, args=(function, i, size, folder, seconds, collective_seconds, arguments), daemon=True) for i in range(size)]
        for process in ranks:
            process.start()
    deadline = time.monotonic() + seconds
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
    late = [i for i, process in enumerate(ranks) if process.is_alive()]
    for i in late:
        ranks[i].kill()
    said = {}
    for i in range(size):
        with contextlib.suppress(FileNotFoundError):
            said[i] = (folder / f"{i}.txt").read_text(encoding="utf-8")
    assert not late, f"ranks {late} have not ended within {seconds} s; others said {said}"
    failed = {i: process.exitcode for i, process in enumerate(ranks) if process.exitcode != 0 and i not in may_die}
    assert not failed, f"exit codes {failed}: {said}"
    return [torch.load(folder / f"{i}.pt") if i not in may_die else None for i in range(size)]
