"""What the processes of test_context_parallel.py do."""

import contextlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention

import fovea.torch
from ranks import said

B, T, D = 2, 48, 16  # 48 tokens: two halves of a shard on 2, 3 and 4 ranks


@dataclass
class Case:
    causal: bool = False
    balance: bool = False
    dtype: torch.dtype = torch.float32
    heads: int = 3
    kv_heads: int = 3
    scale: float | None = None
    rotate: str = "allgather"
    keys: int = T


CASES = {
    "full": Case(),
    "full, all to all": Case(rotate="alltoall", scale=0.4),
    "fewer keys": Case(keys=24),
    "causal": Case(causal=True),
    "causal, grouped heads": Case(causal=True, heads=4, kv_heads=2),
    "balanced": Case(causal=True, balance=True),
    "balanced, all to all": Case(causal=True, balance=True, rotate="alltoall"),
    "balanced, grouped heads": Case(causal=True, balance=True, heads=4, kv_heads=2, rotate="alltoall"),
    "balanced, bf16": Case(causal=True, balance=True, dtype=torch.bfloat16),
    "causal, f16": Case(causal=True, dtype=torch.float16, rotate="alltoall"),
    "balanced, large scores": Case(causal=True, balance=True, scale=8.0),
}


def tensors(case):
    """q, k, v and the derivative by out, of the whole."""
    generator = torch.Generator().manual_seed(sum(map(ord, repr(case))))
    shapes = [(B, case.heads, T, D), (B, case.kv_heads, case.keys, D), (B, case.kv_heads, case.keys, D), (B, case.heads, T, D)]
    return [torch.randn(shape, generator=generator).to(case.dtype) for shape in shapes]


def attend(case, q, k, v, dout):
    """out, dq, dk, dv by PyTorch's function, whoever it is."""
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=case.causal, scale=case.scale, enable_gqa=case.heads != case.kv_heads)
    out.backward(dout)
    return [out.detach(), q.grad, k.grad, v.grad]


def whole(mesh, results):
    """Of the shards of all ranks."""
    return [x.contiguous() for x in _attention.context_parallel_unshard(mesh, results, [2] * len(results))]


def all_cases(rank, size):
    """{(name, patched): ([out, dq, dk, dv] of the whole, runs of Fovea's kernel on this rank)}"""
    mesh = dist.init_device_mesh("cpu", (size,))
    found = {}
    for name, case in CASES.items():
        for patched in (False, True):
            _attention.set_rotate_method(case.rotate)
            _attention._cp_options.enable_load_balance = case.balance
            buffers = tensors(case)
            with fovea.torch.enable_context_parallel(), fovea.torch.patch() if patched else contextlib.nullcontext():
                runs = fovea._core._kernel_runs()
                with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4):
                    results = whole(mesh, attend(case, *buffers))
                found[name, patched] = (results, fovea._core._kernel_runs() - runs)
    return found


def refusals(rank, size):
    """What is said to calls that cannot be computed. Ranks are able to compute afterwards."""
    mesh = dist.init_device_mesh("cpu", (size,))
    _attention._cp_options.enable_load_balance = False
    x = torch.randn(1, 2, 8, 4)
    found = {}

    def call(*arguments, buffers=None, dims=2, **keywords):
        shards = [y.clone() for y in buffers or arguments]
        with context_parallel(mesh, buffers=shards, buffer_seq_dims=[dims] * len(shards)):
            return F.scaled_dot_product_attention(*shards, **keywords)

    with fovea.torch.enable_context_parallel(), fovea.torch.patch():
        found["mask"] = said(lambda: call(x, x, x, attn_mask=torch.ones(4, 8, dtype=torch.bool)))
        found["dropout"] = said(lambda: call(x, x, x, dropout_p=0.5))
        found["axes"] = said(lambda: call(x[0], x[0], x[0], dims=1))
        found["value size"] = said(lambda: call(x, x, x[..., :2]))
        found["uneven"] = said(lambda: call(*[torch.randn(1, 2, 9, 4)] * 3))
        found["empty"] = said(lambda: call(*[torch.randn(0, 2, 8, 4)] * 3))
        found["causal, fewer keys"] = said(lambda: call(x, x[:, :, :4], x[:, :, :4], is_causal=True))
        found["after"] = said(lambda: call(x, x, x))
    with context_parallel(mesh, buffers=[x.clone()], buffer_seq_dims=[2]):
        found["within"] = said(lambda: fovea.torch.enable_context_parallel().__enter__())
    return found
