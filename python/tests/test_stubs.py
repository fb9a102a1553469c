"""The stubs say what the module accepts: every keyword of theirs is known to it, and in its docstring."""

import ast
from pathlib import Path

import numpy as np

import fovea
from fovea import _core

STUB = ast.parse((Path(fovea.__file__).parent / "_core.pyi").read_text())


def keywords(name):
    for node in ast.walk(STUB):
        if isinstance(node, ast.FunctionDef) and node.name == name and node.args.kwonlyargs:
            return [argument.arg for argument in node.args.kwonlyargs]
    raise LookupError(name)


def test_keywords():
    x = np.zeros((1, 1, 2, 4), np.float32)
    expected = fovea.attention(x, x, x)
    for name in keywords("attention"):
        assert np.array_equal(fovea.attention(x, x, x, **{name: None}), expected)
        assert name in fovea.attention.__doc__
    for name in keywords("__init__"):
        fovea.Plan(x, x, x, **{name: None})
        assert name in fovea.attention.__doc__ + fovea.Plan.__doc__


def test_names():
    stubs = {node.name for node in STUB.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert {name for name in dir(_core) if not name.startswith("_")} <= stubs
    assert set(fovea.__all__) <= stubs
    assert (Path(fovea.__file__).parent / "py.typed").exists()
