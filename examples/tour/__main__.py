"""Renders docs/tour.md: attention in seven steps, each with its code, what it prints and a picture.

    pip install . matplotlib
    python examples/tour                # writes docs/tour.md and docs/tour/*.png; --out FOLDER for another place
"""

import argparse
import ast
import contextlib
import inspect
import io
import sys
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import steps
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
LARGEST_PICTURE = 60_000  # bytes: the pictures live in the repository

INTRODUCTION = """\
# A tour of attention

Attention takes queries, keys and values and gives every query an average of the values: `softmax(scale · Q·Kᵀ) · V`. This page walks through it in seven steps, from two keys
to 128K. Everything below is [examples/tour](../examples/tour/steps.py): the code is cut from it, the results are what it prints, and it asserts what the text says. Lines that
begin with `here:` were measured on one machine and differ on others.

`python examples/tour` renders it again; it needs the [Python package](../python/README.md) and matplotlib. All steps begin with `import numpy as np, fovea`.

Letters: `Tq` queries, `Tk` keys, `dk` size of a query and a key, `dv` size of a value. Arrays are [heads, T, d], or [B, heads, T, d] with a batch.
"""


def code_of(function):
    """The function's body without its docstring and its return."""
    source = textwrap.dedent(inspect.getsource(function))
    body = ast.parse(source).body[0].body
    assert isinstance(body[-1], ast.Return)
    return textwrap.dedent("\n".join(source.splitlines()[body[0].end_lineno : body[-1].lineno - 1])).strip("\n")


def helper_source(function):
    return inspect.getsource(function).strip("\n")


def save(figure, path):
    image = io.BytesIO()
    figure.savefig(image, dpi=90)
    plt.close(figure)
    Image.open(image).convert("RGB").quantize(256).save(path, optimize=True)
    assert path.stat().st_size <= LARGEST_PICTURE, path


def render(out):
    folder = out / "tour"
    folder.mkdir(parents=True, exist_ok=True)
    page = [INTRODUCTION]
    for number, (run, helpers, draw) in enumerate(steps.STEPS, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            values = run()
        title, _, text = inspect.getdoc(run).partition("\n")
        print(f"{number}. {title}\n{textwrap.indent(printed.getvalue(), '   ')}", end="", flush=True)
        name = f"{run.__name__}.png"
        save(draw(*values), folder / name)
        code = "\n\n\n".join([*map(helper_source, helpers), code_of(run)])
        page.append(f"## {number}. {title}\n\n{text.strip()}\n\n```python\n{code}\n```\n\n```\n{printed.getvalue()}```\n\n![{title}](tour/{name})\n")
    (out / "tour.md").write_text("\n".join(page), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of tour.md and tour/ (docs)")
    render(parser.parse_args().out)


if __name__ == "__main__":
    sys.exit(main())
