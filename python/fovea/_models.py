"""Which models of transformers run on Fovea: looked at when a model is built, or is given the implementation later.

A layer takes part when its forward() asks transformers' AttentionInterface for the function to call. Others compute attention themselves, and attn_implementation says
nothing to them. Both can be told from the names in the code of their forward().
"""

from __future__ import annotations

import functools
import sys
import types
import warnings

import torch
from transformers import PreTrainedModel

from . import _adapters, _operator

_names: set[str] = set()  # those that are registered
_with_numbers: set[str] = set()  # model types whose layers add masks to scores
_PATTERNS = {"block_indices"}  # keywords of layers for patterns that only other kernels read


def wants_numbers(config) -> bool:
    """Whether layers of this configuration take masks that are added, as eager attention does, and know no boolean ones."""
    return getattr(config, "model_type", None) in _with_numbers


# ---------------------------------------------------------------- what a layer does, by its code


def _codes(code: types.CodeType):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _own_functions(cls: type):
    """The methods of a module's class that its own file defines, those of its bases there too."""
    for base in cls.__mro__:
        library = base.__module__.startswith("transformers.") and not base.__module__.startswith("transformers.models.")
        if library or base.__module__.startswith("torch.") or base is object:
            continue
        for value in vars(base).values():
            value = getattr(value, "__wrapped__", value)
            if isinstance(value, types.FunctionType):
                yield value


@functools.cache
def _kind(cls: type) -> str | None:
    """"interface", "own" or None of a class of modules: what its methods call."""
    names: set[str] = set()
    patterns: set[str] = set()
    for function in _own_functions(cls):
        for code in _codes(function.__code__):
            names.update(code.co_names)
            patterns.update(word for constant in code.co_consts if isinstance(constant, tuple) for word in constant if isinstance(word, str))
    if "ALL_ATTENTION_FUNCTIONS" in names:
        return "pattern" if patterns & _PATTERNS else "interface"
    multiplies = names & {"matmul", "bmm", "einsum", "baddbmm"}
    if "scaled_dot_product_attention" in names or "softmax" in names and (multiplies or "attention" in cls.__name__.lower()) and "router" not in cls.__name__.lower():
        return "own" if "attention" in cls.__name__.lower() or "attn" in cls.__name__.lower() else None
    return None


def _config_of(module: torch.nn.Module, owner: PreTrainedModel):
    config = getattr(module, "config", None)
    return config if hasattr(config, "_attn_implementation") else owner.config


def _layers(model: PreTrainedModel, told: bool = True):
    """(path, kind, module, model it is part of) of the modules that compute attention: those that are told to do so by Fovea, or all."""

    def walk(module, path, owner):
        if isinstance(module, PreTrainedModel):
            owner = module
        kind = None if isinstance(module, PreTrainedModel) else _kind(type(module))
        if kind is not None and (not told or _config_of(module, owner)._attn_implementation in _names):
            yield path, kind, module, owner
        for name, child in module.named_children():
            yield from walk(child, f"{path}.{name}" if path else name, owner)

    yield from walk(model, "", model)


# ---------------------------------------------------------------- the three states


def state_of(model: PreTrainedModel) -> tuple[str, str]:
    """("fovea" | "partly" | "refused", a sentence), of a model whose implementation is Fovea's."""
    layers = list(_layers(model))
    name = type(model).__name__
    own = sorted({type(module).__name__ for _, kind, module, _ in layers if kind == "own"})
    patterns = sorted({type(module).__name__ for _, kind, module, _ in layers if kind == "pattern"})
    if patterns:
        return "refused", f"{name}: {', '.join(patterns)} chooses keys in a pattern that only other implementations read"
    if not any(kind == "interface" for _, kind, _, _ in layers):
        own = own or sorted({type(module).__name__ for _, kind, module, _ in _layers(model, told=False) if kind == "own"})
        if own:
            return "refused", f"{name}: {', '.join(own)} computes attention itself, not by transformers' AttentionInterface"
        return "refused", f"{name} has no layer that computes attention by transformers' AttentionInterface"
    for _, kind, module, owner in layers:
        if kind == "interface" and not getattr(module, "takes_booleans", owner._supports_sdpa):
            _with_numbers.add(_config_of(module, owner).model_type)
    if own:
        paths = [path for path, kind, _, _ in layers if kind == "own"]
        shown = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
        return "partly", f"{name}: {', '.join(own)} computes attention itself ({shown}); the other layers run on Fovea"
    return "fovea", ""


def _adapt(model: PreTrainedModel) -> None:
    """Layers that have an adapter take or leave it."""

    def walk(module, owner):
        owner = module if isinstance(module, PreTrainedModel) else owner
        _adapters.adapt(module, _config_of(module, owner)._attn_implementation in _names)
        for child in module.children():
            walk(child, owner)

    walk(model, model)


def _judge(model: PreTrainedModel) -> None:
    state, sentence = state_of(model)
    if state == "refused":
        raise ValueError(f'attn_implementation="fovea" is refused: {sentence}')
    if state == "partly":
        if sentence not in _operator.warned:
            _operator.warned.add(sentence)
            warnings.warn(f"Fovea leaves attention to the model in part: {sentence}", _operator.FallbackWarning, stacklevel=4)


def _told(model) -> bool:
    configs = [model.config] + [module.config for module in model.modules() if isinstance(module, PreTrainedModel)]
    return any(config._attn_implementation in _names for config in configs)


def _is_part(model) -> bool:
    """Whether another model is being built around this one."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "__init__":
            owner = frame.f_locals.get("self")
            if owner is not model and isinstance(owner, PreTrainedModel):
                return True
        frame = frame.f_back
    return False


def _check_class(cls: type, implementation) -> None:
    """Models that look for a class of layers by the implementation's name, and would fail with it."""
    if implementation not in _names:
        return
    for name, value in vars(sys.modules[cls.__module__]).items():
        if isinstance(value, dict) and "eager" in value and implementation not in value and all(isinstance(layer, type) for layer in value.values()):
            if _adapters.adapted(value["eager"]) is not None:
                value[implementation] = value["eager"]  # which becomes the other when the model is whole
                continue
            raise ValueError(f'attn_implementation="{implementation}" is refused: {cls.__name__} has classes of layers that compute attention themselves ({name})')


def watch(name: str) -> None:
    """Models that are given this implementation are looked at."""
    _names.add(name)
    if hasattr(PreTrainedModel, "_fovea_watches"):
        return
    PreTrainedModel._fovea_watches = True
    post_init, set_implementation, check = PreTrainedModel.post_init, PreTrainedModel.set_attn_implementation, PreTrainedModel.get_correct_attn_implementation

    can_set = PreTrainedModel._can_set_attn_implementation.__func__

    @functools.wraps(can_set)
    def can_set_attn_implementation(cls):
        return can_set(cls) or cls.__module__ in _adapters.MODULES

    @functools.wraps(check)
    def get_correct_attn_implementation(self, requested_attention, *arguments, **keywords):
        _check_class(type(self), requested_attention)
        return check(self, requested_attention, *arguments, **keywords)

    @functools.wraps(post_init)
    def judged_post_init(self):
        post_init(self)
        if _told(self) and not _is_part(self):
            _adapt(self)
            _judge(self)

    @functools.wraps(set_implementation)
    def set_attn_implementation(self, attn_implementation, *arguments, **keywords):
        configs = [self.config] + [module.config for module in self.modules() if isinstance(module, PreTrainedModel)]
        before = [(config, config._attn_implementation_internal) for config in configs]
        result = set_implementation(self, attn_implementation, *arguments, **keywords)
        _adapt(self)
        wanted = attn_implementation.values() if isinstance(attn_implementation, dict) else [attn_implementation]
        if _names & {word for word in wanted if isinstance(word, str)}:
            try:
                _judge(self)
            except ValueError:
                for config, implementation in before:
                    config._attn_implementation_internal = implementation
                _adapt(self)
                raise
        return result

    PreTrainedModel._can_set_attn_implementation = classmethod(can_set_attn_implementation)
    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation
    PreTrainedModel.post_init = judged_post_init
    PreTrainedModel.set_attn_implementation = set_attn_implementation
