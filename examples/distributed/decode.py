#!/usr/bin/env python3
"""Decoding over keys that lie on several processes or hosts, with torch.distributed (gloo).

    torchrun --nproc-per-node 3 examples/distributed/decode.py --tokens 64

Every rank has a cache of pages and the keys of its part of each sequence. A step sends the new keys and the query to all; the rank that has room keeps the keys; each rank
attends to its own, and the parts (out, lse) merge: all of them on every rank, in the order of the keys, so that the bits are the same each time and on each rank. As one
all-reduce less is sent, and the bits may depend on the algorithm of the network's library.
"""

import argparse
import datetime
import json
import math
import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist

import fovea

APPEND, ATTEND = 1, 2
NAMES = {APPEND: "append()", ATTEND: "attend()"}


class RankLost(RuntimeError):
    """A rank has died, or has not answered in time. The keys that it had are lost, and this object is of no more use."""


class ShardedCache:
    """Keys and values of B sequences, spread over the ranks of a group in the order of the ranks: a sequence goes on in the next rank where one is full.

    sequences, heads, kv_heads, dk, dv   B, Hq, Hkv, and the sizes of a key and a value: the same on all ranks
    pages     of this rank, of `page` keys each; 0: a rank without keys
    k_type, v_type   as in fovea.KVCache
    root      the rank that has queries, new keys and new values

    append() and attend() are called by all ranks, in one order; the root gives tensors, others nothing. What the root gives is looked at before anything is sent: after a
    ValueError the others still wait for the call, and the root may make it again. RankLost within the timeout of the group where a rank is gone, or some of its messages.
    """

    def __init__(self, *, sequences, heads, kv_heads, dk, dv, pages, page=16, k_type="f32", v_type=None, root=0, group=None):
        self.group, self.root, self.lost = group, root, False
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.B, self.Hq, self.Hkv, self.dk, self.dv, self.page = sequences, heads, kv_heads, dk, dv, page
        settings = {"sequences": sequences, "heads": heads, "kv_heads": kv_heads, "dk": dk, "dv": dv, "page": page, "k_type": k_type, "v_type": v_type, "root": root}
        everybodys = [None] * self.ranks
        self._send(dist.all_gather_object, everybodys, (settings, pages))
        for rank, (other, _) in enumerate(everybodys):
            if other != everybodys[0][0]:
                raise ValueError(f"rank {rank} has {json.dumps(other)}, expected {json.dumps(everybodys[0][0])} (rank 0)")
        self.cache = fovea.KVCache(pages, page, heads=kv_heads, dk=dk, dv=dv, k_type=k_type, v_type=v_type)
        self.table = np.full((sequences, pages), -1, np.int32)  # of this rank
        self.used = 0  # pages of this rank
        # What all ranks know of all, so that nobody has to be asked who has room.
        self.free = [count for _, count in everybodys]
        self.lengths = np.zeros((self.ranks, sequences), np.int64)
        self.largest = torch.zeros(sequences, kv_heads, dtype=torch.float64)  # norm of a key

    def _send(self, collective, *arguments, **keywords):
        if self.lost:
            raise RankLost("a rank was lost before")
        try:
            return collective(*arguments, group=self.group, **keywords)
        except RuntimeError as error:
            self.lost = True
            raise RankLost(f"rank {self.rank}: {collective.__name__} failed: {str(error).splitlines()[0]}") from error

    def _from_root(self, kind, tensors, shapes):
        """The root's tensors, float32. `shapes` are theirs, −1 for the number of tokens, which is one number in a call."""
        header = torch.zeros(2, dtype=torch.int64)
        if self.rank == self.root:
            tokens = None
            for name, (shape, x) in zip(("k", "v") if kind == APPEND else ("q",), zip(shapes, tensors)):
                if not isinstance(x, torch.Tensor) or not x.is_floating_point():
                    raise ValueError(f"{name} is {x.dtype if isinstance(x, torch.Tensor) else type(x).__name__}, expected a tensor of floats")
                tokens = x.shape[2] if tokens is None and x.dim() == 4 else tokens
                expected = [tokens if n < 0 else n for n in shape]
                if list(x.shape) != expected:
                    raise ValueError(f"{name}.shape = {list(x.shape)}, expected {['tokens' if n is None else n for n in expected]}")
            if kind == APPEND:
                self._places(tokens)  # MemoryError where no rank has room
            header[0], header[1] = kind, tokens
        elif any(x is not None for x in tensors):
            raise ValueError(f"rank {self.rank} gives a tensor, expected only rank {self.root} to (root)")
        self._send(dist.broadcast, header, self.root)
        if int(header[0]) != kind:
            self.lost = True
            raise RuntimeError(f"rank {self.rank} calls {NAMES[kind]} where rank {self.root} (root) calls {NAMES[int(header[0])]}")
        sizes = [[int(header[1]) if n < 0 else n for n in shape] for shape in shapes]
        if self.rank == self.root:
            payload = torch.cat([x.detach().to(torch.float32).flatten() for x in tensors])
        else:
            payload = torch.empty(sum(map(math.prod, sizes)))
        self._send(dist.broadcast, payload, self.root)
        return [x.view(size) for x, size in zip(payload.split(list(map(math.prod, sizes))), sizes)]

    def _places(self, tokens):
        """Where so many new tokens go: rank [B, tokens], and what free and lengths are then. MemoryError where no rank has room."""
        free, lengths = list(self.free), self.lengths.copy()
        owner = np.empty((self.B, tokens), np.int64)
        for b in range(self.B):
            rank = max((r for r in range(self.ranks) if lengths[r, b] > 0), default=0)
            for t in range(tokens):
                while lengths[rank, b] % self.page == 0 and free[rank] == 0:  # no row in its last page, and no page
                    rank += 1
                    if rank == self.ranks:
                        raise MemoryError(f"no rank has room for token {t} of {tokens} of sequence {b}")
                free[rank] -= lengths[rank, b] % self.page == 0
                lengths[rank, b] += 1
                owner[b, t] = rank
        return owner, free, lengths

    def append(self, k=None, v=None):
        """New keys [B, Hkv, n, dk] and values [B, Hkv, n, dv] of all sequences, behind those that are there. MemoryError, on the root and before anything is sent, where
        no rank has room; the others wait."""
        k, v = self._from_root(APPEND, (k, v), ((self.B, self.Hkv, -1, self.dk), (self.B, self.Hkv, -1, self.dv)))
        owner, free, lengths = self._places(k.shape[2])
        slots = np.full(owner.shape, -1, np.int64)  # of this rank's cache; below 0: another's
        for b in range(self.B):
            length = self.lengths[self.rank, b]
            for t in np.flatnonzero(owner[b] == self.rank):
                row = length % self.page
                if row == 0:
                    self.table[b, length // self.page] = self.used
                    self.used += 1
                slots[b, t] = self.table[b, length // self.page] * self.page + row
                length += 1
        if (slots >= 0).any():
            self.cache.append(k, v, slots=slots)
        self.free, self.lengths = free, lengths
        if k.shape[2] > 0:
            self.largest = torch.maximum(self.largest, k.double().norm(dim=-1).amax(-1))

    def part(self, q):
        """(out, lse) of this rank's keys. Without keys: out 0 and lse −inf, which count for nothing."""
        mine = self.lengths[self.rank]
        if not mine.any():
            return torch.zeros(self.B, self.Hq, q.shape[2], self.dv), torch.full(q.shape[:3], -math.inf)
        pages = -(-int(mine.max()) // self.page)
        table = np.ascontiguousarray(self.table[:, :pages])
        return fovea.attention(q, self.cache.k, self.cache.v, kv_lengths=mine, page_table=table, return_lse=True, **self.cache.keywords)

    def attend(self, q=None, *, one_all_reduce=False):
        """(out [B, Hq, Tq, dv], lse [B, Hq, Tq]), float32, on all ranks, of the root's q [B, Hq, Tq, dk]; each query sees all keys. The same bits each time and on each rank.

        one_all_reduce   a sum of float64 over ranks: the bits may depend on the algorithm of the library that sums. OverflowError on all ranks where q·k may be larger than
                         it is by more than float64 can hold (700 or so).
        """
        (q,) = self._from_root(ATTEND, (q,), ((self.B, self.Hq, -1, self.dk),))
        out, lse = self.part(q)
        if one_all_reduce:
            return self._sum(q, out, lse)
        mine = torch.cat((out, lse.unsqueeze(-1)), -1)
        parts = torch.empty(self.ranks, *mine.shape)
        self._send(dist.all_gather, list(parts.unbind()), mine)
        return fovea.merge([(x[..., :-1].contiguous(), x[..., -1].contiguous()) for x in parts])  # ranks are in the order of the keys

    def _sum(self, q, out, lse):
        """Weights are exp(lse − bound) with a bound that all ranks know without asking: |q·k| ≤ |q|·|k|."""
        largest = self.largest.repeat_interleave(self.Hq // self.Hkv, 1)
        bound = q.double().norm(dim=-1) * largest.unsqueeze(-1) * self.dk**-0.5
        weight = torch.exp(lse.double() - bound)
        out = torch.where(weight.unsqueeze(-1) > 0, out.double(), 0.0)
        sums = torch.cat((weight.unsqueeze(-1) * out, weight.unsqueeze(-1)), -1)
        self._send(dist.all_reduce, sums)
        total = sums[..., -1]
        has_keys = torch.from_numpy(self.lengths.sum(0) > 0).view(-1, 1, 1)
        if bool((has_keys & ~(total > 1e-290)).any()):
            raise OverflowError("the bound of q·k is too far from its values, or these are not finite: attend() without one_all_reduce")
        out = sums[..., :-1] / torch.where(total > 0, total, 1.0).unsqueeze(-1)
        return out.float(), (bound + torch.log(total)).float()


# ---------------------------------------------------------------- as a program


def exact(q, k, v):
    """In float64, of keys in one place."""
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return torch.softmax(q.double() @ k.mT / q.shape[-1] ** 0.5, -1) @ v


def decode(arguments):
    """Steps of decoding, each looked at; a line about them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    B, Hq, Hkv, d, page = 2, 8, 2, 64, 16
    total = arguments.prompt + arguments.tokens
    cache = ShardedCache(sequences=B, heads=Hq, kv_heads=Hkv, dk=d, dv=d, pages=-(-total // page) * B // ranks + B, page=page, k_type=arguments.k_type)
    generator = torch.Generator().manual_seed(0)
    root = rank == cache.root
    k, v = (torch.randn(B, Hkv, total, d, generator=generator) for _ in range(2))
    seconds, error = 0.0, 0.0
    cache.append(*(x[:, :, : arguments.prompt] for x in (k, v)) if root else ())
    for n in range(arguments.prompt, total):
        q = torch.randn(B, Hq, 1, d, generator=generator)
        start = time.perf_counter()
        cache.append(*(x[:, :, n : n + 1] for x in (k, v)) if root else ())
        out, _ = cache.attend(q if root else None, one_all_reduce=arguments.one_all_reduce)
        seconds += time.perf_counter() - start
        error = max(error, float((out.double() - exact(q, k[:, :, : n + 1], v[:, :, : n + 1])).abs().max()))
    return f"rank {rank} of {ranks}: {cache.lengths[rank].tolist()} keys, {1e3 * seconds / arguments.tokens:.2f} ms a step, error {error:.1e}\n"


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=32, help="steps of decoding (32)")
    parser.add_argument("--prompt", type=int, default=256, help="keys that are there before (256)")
    parser.add_argument("--k-type", default="f32", help="of keys and values in the cache, as in fovea.KVCache (f32)")
    parser.add_argument("--one-all-reduce", action="store_true", help="merge by a sum instead of gathering")
    parser.add_argument("--timeout", type=float, default=60, help="seconds after which a rank that says nothing is lost (60)")
    arguments = parser.parse_args(words)
    if arguments.tokens < 1 or arguments.prompt < 0:
        parser.error("--tokens: expected 1 or more; --prompt: expected 0 or more")
    return arguments


def main():
    arguments = parse()
    if "RANK" not in os.environ:
        sys.exit("decode.py: run it by torchrun --nproc-per-node N, which tells each process its rank")
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=arguments.timeout))
    try:
        sys.stdout.write(decode(arguments))
    except RankLost as lost:
        sys.exit(str(lost))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
