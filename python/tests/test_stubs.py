"""The stubs say what the module accepts: every keyword of theirs is known to it, and in its docstring."""

import ast
from pathlib import Path

import numpy as np
import pytest

import fovea
from fovea import _core

STUB = ast.parse((Path(fovea.__file__).parent / "_core.pyi").read_text())


CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def fields(name):
    """Of a TypedDict, its bases included."""
    node = CLASSES[name]
    inherited = {field for base in node.bases if base.id in CLASSES for field in fields(base.id)}
    return inherited | {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}


def keywords(function):
    """Of a function of the stubs: those before **options, and what options are."""
    options = function.args.kwarg.annotation.slice.id
    return {argument.arg for argument in function.args.kwonlyargs} | fields(options)


def functions(body, name):
    return [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]


def test_keywords():
    x = np.zeros((1, 1, 2, 4), np.float32)
    expected = fovea.attention(x, x, x)
    overloads = [keywords(function) for function in functions(STUB.body, "attention")]
    assert len(overloads) == 3 and all(names == overloads[0] for names in overloads)
    for name in overloads[0]:
        assert np.array_equal(fovea.attention(x, x, x, **{name: None}), expected)
        assert name in fovea.attention.__doc__

    [init], [run], [update] = (functions(CLASSES["Plan"].body, name) for name in ("__init__", "run", "update"))
    for name in keywords(init):
        plan = fovea.Plan(x, x, x, **{name: None})
        assert name in fovea.attention.__doc__ + fovea.Plan.__doc__
    assert keywords(run) == keywords(update)
    for name in keywords(run):
        assert np.array_equal(plan.run(x, x, x, **{name: None}), expected)
        plan.update(x, x, x, **{name: None})
    for name in keywords(init) - keywords(run):  # what a plan was made with stays
        for refuses in (plan.run, plan.update):
            with pytest.raises(TypeError, match="unexpected"):
                refuses(x, x, x, **{name: None})
    assert keywords(init) - overloads[0] == {"max_queries", "max_keys", "fixed_mask", "fixed_bias", "fixed_tables"}


def test_names():
    stubs = {node.name for node in STUB.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert {name for name in dir(_core) if not name.startswith("_")} <= stubs
    in_python = {"KVCache", *fovea.score_function.__all__}
    assert set(fovea.__all__) == {name for name in stubs if not name.startswith("_")} | in_python
    assert (Path(fovea.__file__).parent / "py.typed").exists()
