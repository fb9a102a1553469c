"""What the processes of test_distributed.py do."""

import importlib.util
import os
import signal
import time
from pathlib import Path

import torch
from ranks import said

_path = Path(__file__).parents[2] / "examples/distributed/decode.py"
_spec = importlib.util.spec_from_file_location("fovea_distributed_decode", _path)
decode = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(decode)

B, HQ, HKV, DK, DV = 2, 4, 2, 16, 24
PAGE = 4
PAGES = {2: (6, 5), 3: (6, 0, 5), 4: (2, 0, 1, 9)}  # of ranks; rank 1 of 3 and 4 has no keys, and sequence 0 of 4 lies on three
PROMPT, STEPS = 13, 7


def data():
    """k, v of all tokens, and q of each step."""
    generator = torch.Generator().manual_seed(7)
    n = PROMPT + STEPS
    return tuple(torch.randn(shape, generator=generator) for shape in ((B, HKV, n, DK), (B, HKV, n, DV), (STEPS, B, HQ, 2, DK)))


def new(pages, **changed):
    settings = {"sequences": B, "heads": HQ, "kv_heads": HKV, "dk": DK, "dv": DV, "page": PAGE, **changed}
    return decode.ShardedCache(pages=pages, **settings)


def steps(rank, size, root, haste):
    """Of each step (lengths [ranks, B], out and lse gathered, out and lse of one all-reduce). `haste`: seconds by which ranks come later than others."""
    k, v, q = data()
    cache, mine = new(PAGES[size][rank], root=root), rank == root
    found = []
    cache.append(*(x[:, :, :PROMPT] for x in (k, v)) if mine else ())
    for i in range(STEPS):
        n = PROMPT + i
        time.sleep(haste * ((rank + i) % size))
        cache.append(*(x[:, :, n : n + 1] for x in (k, v)) if mine else ())
        gathered = cache.attend(q[i] if mine else None)
        again = cache.attend(q[i] if mine else None)
        assert all(torch.equal(a, b) for a, b in zip(gathered, again))
        found.append((torch.from_numpy(cache.lengths.copy()), *gathered, *cache.attend(q[i] if mine else None, one_all_reduce=True)))
    return found


def refusals(rank, size):
    k, v, q = data()
    found = {"settings": said(lambda: new(2, heads=HQ + 2 * rank))}
    cache = new(2)
    found["no keys"] = cache.attend(q[0] if rank == 0 else None)
    if rank == 0:  # the other waits in append() and attend()
        sent = []
        send = cache._send
        cache._send = lambda *arguments, **keywords: sent.append(arguments)
        found["keys"] = said(lambda: cache.append(k[:, :, :1, 1:], v[:, :, :1]))
        found["tokens"] = said(lambda: cache.append(k[:, :, :1], v[:, :, :2]))
        found["axes"] = said(lambda: cache.append(k[0], v[0]))
        found["type"] = said(lambda: cache.append(k.numpy(), v.numpy()))
        found["room"] = said(lambda: cache.append(k, v))
        found["query"] = said(lambda: cache.attend(q[0][:, :, :, 1:]))
        assert not sent
        cache._send = send
    else:
        found["not root"] = said(lambda: cache.append(k, v))
    cache.append(*(x[:, :, :3] for x in (k, v)) if rank == 0 else ())
    found["after"] = cache.attend(q[0] if rank == 0 else None)
    # q and k at right angles and large: |q|·|k| is far from q·k
    x = torch.zeros(B, HQ, 1, DK)
    x[..., 0] = 1e3
    y = torch.zeros(B, HKV, 1, DK)
    y[..., 1] = 1e3
    far = new(2)
    far.append(*(y, torch.ones(B, HKV, 1, DV)) if rank == 0 else ())
    found["far"] = said(lambda: far.attend(x if rank == 0 else None, one_all_reduce=True))
    found["far, gathered"] = far.attend(x if rank == 0 else None)[0]
    found["order"] = said((lambda: cache.attend(q[0])) if rank == 0 else cache.append)
    return found


def death(rank, size, dies, how):
    """What the others see, and after how many seconds."""
    k, v, q = data()
    cache = new(6)
    cache.append(*(x[:, :, :PROMPT] for x in (k, v)) if rank == 0 else ())
    cache.attend(q[0] if rank == 0 else None)
    if rank == dies:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(10)  # says nothing for longer than anybody waits
        os._exit(1)
    start = time.monotonic()
    first = said(lambda: cache.attend(q[1] if rank == 0 else None))
    seconds = time.monotonic() - start
    return first, seconds, said(lambda: cache.attend(q[1] if rank == 0 else None))


def program(rank, size, words):
    return decode.decode(decode.parse(words))


