"""PyTorch's context parallelism (ring attention) on CPUs: rules for the two operators of attention that it does not know, for as long as somebody wants them.

torch.distributed.tensor.experimental.context_parallel makes DTensors, sharded by tokens, of what torch.nn.functional.scaled_dot_product_attention is called with, and
gives each operator of attention to the handler that its table `custom_ops` has for it. The table has those of GPUs. Here are handlers of the CPU's operator and of its derivative;
keys that travel, balanced loads and sums of gradients are PyTorch's, and the kernel of a step is whoever's the operator is: Fovea's under fovea.torch.patch().

Partial states merge as docs/distributed.md says: PyTorch's own way makes NaN of a row whose first keys have no weight at all (lse = −inf).
Nothing here knows which kernel runs.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from . import _backward, _patch

TESTED = ("2.13.0",)
_MODULE = "torch.distributed.tensor.experimental._context_parallel._attention"
_TOKENS = 2  # the axis of [B, H, T, d] that is spread over ranks
# What is called there, and with which parameters.
_SIGNATURES = {
    "_templated_ring_attention": ("group", "seq_dim", "op", "query", "key", "value", "is_causal", "kwargs"),
    "_templated_ring_attention_backward": (
        "group", "seq_dim", "op", "grad_out", "grad_out_name", "query", "key", "value", "out", "logsumexp", "is_causal", "kwargs",
    ),
    "_SDPAMerger.__init__": ("self", "convert_to_f32", "seq_dim"),
    "_SDPAMerger._merge_one": ("self", "block_out", "block_lse", "partial"),
    "_SDPAMerger.results": ("self",),
    "_sdpa_handler": ("op_call", "args", "kwargs"),
    "_ContextParallel.sdpa_input_fn": ("self", "module", "args", "kwargs", "mesh"),
    "_context_parallel_buffers": ("mesh", "buffers", "buffer_seq_dims", "load_balancer"),
    "context_parallel": ("mesh", "buffers", "buffer_seq_dims", "no_restore_buffers"),
}  # fmt: skip
_SCHEMAS = {_patch._FLASH: _patch._SCHEMAS[_patch._FLASH], _backward.NAME: _backward.SCHEMA}
_lock = threading.Lock()
_depth = 0
_undo = contextlib.ExitStack()


# ---------------------------------------------------------------- what is there


def _misfits(module: ModuleType) -> list[str]:
    """What of PyTorch's is missing, or is not what it was when this was written."""
    found = []
    for name, expected in _SIGNATURES.items():
        item: Any = module
        for part in name.split("."):
            item = getattr(item, part, None)
        if item is None:
            found.append(f"{name} is missing")
        elif tuple(inspect.signature(item).parameters) != expected:
            found.append(f"{name} is {name}{inspect.signature(item)}, expected {name}({', '.join(expected)})")
    for name in ("custom_ops", "existing_custom_ops"):
        if not isinstance(getattr(module, name, None), dict):
            found.append(f"{name} is missing")
    from torch.distributed.tensor import DTensor

    if not isinstance(getattr(getattr(DTensor, "_op_dispatcher", None), "_custom_op_handlers", None), dict):
        found.append("DTensor._op_dispatcher._custom_op_handlers is missing")
    for name, schema in _SCHEMAS.items():
        operator = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
        if operator is None or str(operator.default._schema) != name + schema:
            found.append(f"{name} is {'missing' if operator is None else operator.default._schema}, expected {name}{schema}")
    return found


def _attention() -> ModuleType:
    """PyTorch's module; RuntimeError where it does not fit."""
    if not torch.distributed.is_available():
        raise RuntimeError(f"fovea.torch.enable_context_parallel(): PyTorch {torch.__version__} was built without torch.distributed")
    try:
        module = importlib.import_module(_MODULE)
    except ImportError as error:
        misfits = [f"{_MODULE} is missing ({error})"]
    else:
        misfits = _misfits(module)
    if misfits:
        raise RuntimeError(
            f"fovea.torch.enable_context_parallel() does not fit the context parallelism of PyTorch {torch.__version__} (tested with {', '.join(TESTED)}): "
            + "; ".join(misfits)
        )
    return module


# ---------------------------------------------------------------- partial states


def merge(out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The state over both sets of keys: out [B, H, T, d], lse [B, H, T]. A row with lse = −inf is no part of it, whatever its out is.

    Made of PyTorch's operators, as the ring around it is.
    """
    m = torch.maximum(lse, other_lse)
    m = m.masked_fill(m == -torch.inf, 0.0)
    weight, other_weight = torch.exp(lse - m), torch.exp(other_lse - m)
    total = weight + other_weight
    divisor = total.masked_fill(total == 0, 1.0)
    parts = [(w / divisor).unsqueeze(-1) * o.masked_fill((w == 0).unsqueeze(-1), 0.0) for w, o in ((weight, out), (other_weight, other))]
    return parts[0] + parts[1], m + torch.log(total)


def _merger(original: type) -> type:
    class Merger(original):  # type: ignore[misc]
        """PyTorch's, but for CPUs' states: they merge as Fovea's do."""

        _out: torch.Tensor | None
        _lse: torch.Tensor | None

        def _merge_one(self, block_out: torch.Tensor, block_lse: torch.Tensor, partial: bool) -> None:
            if block_out.device.type != "cpu":
                super()._merge_one(block_out, block_lse, partial)
            elif self._out is None or self._lse is None:
                self._out, self._lse = block_out, block_lse
            elif partial:  # only the second half of the rows
                first_out, out = self._out.chunk(2, dim=self._seq_dim)
                first_lse, lse = self._lse.chunk(2, dim=self._seq_dim)
                out, lse = merge(out, lse, block_out, block_lse)
                self._out, self._lse = torch.cat((first_out, out), self._seq_dim), torch.cat((first_lse, lse), self._seq_dim)
            else:
                self._out, self._lse = merge(self._out, self._lse, block_out, block_lse)

    return Merger


# ---------------------------------------------------------------- what is refused, before anything is sent


def _refuse(arguments: dict[str, Any]) -> None:
    if arguments.get("attn_mask") is not None:
        raise NotImplementedError("context_parallel on CPUs: attn_mask is not supported, expected None (is_causal=True is)")
    if arguments.get("dropout_p", 0.0) != 0.0:
        raise NotImplementedError(f"context_parallel on CPUs: dropout_p = {arguments['dropout_p']}, expected 0")


def _checked_arguments(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of PyTorch's function, which is about to make DTensors. What is no call of the operators below would be taken apart there, and attend to the wrong keys."""

    def sdpa_input_fn(self: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Any) -> Any:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        arguments = {**dict(zip(names, args)), **kwargs}
        tensors = {name: arguments[name] for name in names[:3] if isinstance(arguments.get(name), torch.Tensor)}
        if len(tensors) == 3 and all(x.device.type == "cpu" for x in tensors.values()):
            _refuse(arguments)
            for name, x in tensors.items():
                if x.dim() != 4:
                    raise ValueError(f"context_parallel on CPUs: {name} has {x.dim()} axes, expected 4: [B, H, T / N, d]")
                if x.numel() == 0:
                    raise ValueError(f"context_parallel on CPUs: {name} is {list(x.shape)}, expected no axis of 0")
            dk, dv = tensors["key"].shape[3], tensors["value"].shape[3]
            if dk != dv:
                raise NotImplementedError(f"context_parallel on CPUs: value.shape[3] = {dv}, expected {dk} (key.shape[3])")
        return original(self, module, args, kwargs, mesh)

    return sdpa_input_fn


def _checked_buffers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of PyTorch's function, which is about to cut buffers into shards. All ranks make the messages that fit their own shard, so that all must be of one size."""

    def context_parallel_buffers(mesh: Any, buffers: list[Any], buffer_seq_dims: list[int], load_balancer: Any = None) -> Any:
        for i, (x, dim) in enumerate(zip(buffers, buffer_seq_dims)):
            if isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.shape[dim] % mesh.size() != 0:
                raise ValueError(f"context_parallel on CPUs: buffers[{i}].shape[{dim}] = {x.shape[dim]}, expected a multiple of {mesh.size()} (ranks)")
        return original(mesh, buffers, buffer_seq_dims, load_balancer)

    return context_parallel_buffers


# ---------------------------------------------------------------- handlers


def _bound(op_call: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, Any]:
    """Arguments by name, defaults included."""
    names = [argument.name for argument in op_call._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in op_call._schema.arguments if argument.has_default_value()}
    return {**defaults, **dict(zip(names, args)), **kwargs}


def _handler(ring: Callable[..., tuple[torch.Tensor, ...]]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Of PyTorch's ring that of one operator, from DTensors to DTensors."""

    @torch.no_grad()
    def handler(op_call: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[torch.Tensor, ...]:
        from torch.distributed.tensor import DTensor, Shard

        arguments = _bound(op_call, args, kwargs)
        _refuse(arguments)
        mesh = arguments["query"].device_mesh
        for name, x in arguments.items():
            if isinstance(x, torch.Tensor):
                if not isinstance(x, DTensor) or x.device_mesh != mesh or tuple(x.placements) != (Shard(_TOKENS),):
                    there = f"{x.placements} on {x.device_mesh}" if isinstance(x, DTensor) else "not a DTensor"
                    raise RuntimeError(f"context_parallel on CPUs: {name} is {there}, expected [Shard({_TOKENS})] on {mesh}")
                arguments[name] = x.to_local()
        del arguments["attn_mask"]
        results = ring(mesh.get_group(), _TOKENS, op_call, **arguments)
        return tuple(DTensor.from_local(x, mesh, (Shard(_TOKENS),), run_check=False) for x in results)

    return handler


def _install() -> contextlib.ExitStack:
    module = _attention()
    from torch.distributed.tensor import DTensor

    if DTensor._op_dispatcher._custom_op_handlers is not module.existing_custom_ops:
        raise RuntimeError("fovea.torch.enable_context_parallel() within context_parallel(): enter it before")

    def forward(*positional: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        return module._templated_ring_attention(*positional, **named)  # type: ignore[no-any-return]

    def backward(*positional: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        return module._templated_ring_attention_backward(*positional, grad_out_name="grad_out", **named)  # type: ignore[no-any-return]

    with contextlib.ExitStack() as undo:
        for name, ring in ((_patch._FLASH, forward), (_backward.NAME, backward)):
            operator = getattr(torch.ops.aten, name.removeprefix("aten::")).default
            module.custom_ops[operator] = _handler(ring)
            undo.callback(_forget, module, operator)
        for owner, name, made in (
            (module, "_SDPAMerger", _merger),
            (module._ContextParallel, "sdpa_input_fn", _checked_arguments),
            (module, "_context_parallel_buffers", _checked_buffers),
        ):
            original = getattr(owner, name)
            undo.callback(setattr, owner, name, original)
            setattr(owner, name, made(original))
        return undo.pop_all()


def _forget(module: ModuleType, operator: torch._ops.OpOverload) -> None:
    from torch.distributed.tensor import DTensor

    module.custom_ops.pop(operator)
    DTensor._op_dispatcher._custom_op_handlers.pop(operator, None)  # of a context_parallel() that has not ended


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """The handlers are in PyTorch's table until the last of these blocks ends."""
    global _depth, _undo
    with _lock:
        if _depth == 0:
            _undo = _install()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _undo.close()
