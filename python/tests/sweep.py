"""Every model type of the installed transformers at a tiny random size: what state it is in with Fovea, and whether it computes what eager attention computes.

    python python/tests/sweep.py [TYPE...] > docs/models.md        # the table; all types by default
    python python/tests/sweep.py --rows FILE --part 0/2            # rows alone, of every second type; --from FILE... makes the table of them
"""

import argparse
import contextlib
import datetime
import json
import signal
import sys
import warnings

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

import fovea.torch
import fovea.transformers
from fovea import _operator
from tiny_models import TYPES, build, inputs_of, tensors_of

COMPILED = {"llama", "mistral", "gemma2", "gpt_oss", "qwen3", "phi3", "bert", "bloom", "gpt2", "olmo2"}  # by torch.compile too


class Late(Exception):
    pass


@contextlib.contextmanager
def seconds(limit):
    def late(*_):
        raise Late(f"more than {limit} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def counted():
    """Calls of Fovea's function by layers, as a list that grows."""
    calls = []
    interface = transformers.AttentionInterface._global_mapping
    before = interface["fovea"]

    def count(*arguments, **keywords):
        calls.append(1)
        return before(*arguments, **keywords)

    interface["fovea"] = count
    try:
        yield calls
    finally:
        interface["fovea"] = before


@contextlib.contextmanager
def observed():
    """Calls that Fovea computes under patch()."""
    calls = []
    _operator.observe(lambda *_: calls.append(1))
    try:
        yield calls
    finally:
        _operator.observe(None)


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"


def differs(inputs, expected, got, tolerance=2e-3) -> str:
    valid = inputs.get("attention_mask")
    worst = 0.0
    for e, g in zip(expected, got):
        if e.shape != g.shape:
            return f"shape {list(g.shape)}, expected {list(e.shape)}"
        if valid is not None and e.dim() >= 2 and e.shape[:2] == valid.shape:
            e, g = e[valid.bool()], g[valid.bool()]
        if e.isfinite().all() and e.numel() > 0:
            worst = max(worst, float((e - g).abs().max() / e.abs().max().clamp(min=1e-3)))
    return "" if worst <= tolerance else f"off by {worst:.1e} of the largest value"


def run(model, inputs):
    torch.manual_seed(2)  # models that draw random numbers draw the same
    return tensors_of(model(**inputs))


def refusal_of(kind) -> str:
    try:
        build(kind, "fovea")
    except ValueError as error:
        if "is refused" in str(error):
            return str(error).split(": ", 2)[-1]
    except Exception:  # noqa: BLE001
        pass
    return ""


def eager_of(kind):
    """The model, its input, and what comes out; with images too where it wants them."""
    model = build(kind)
    try:
        inputs = inputs_of(model)
        return model, inputs, run(model, inputs)
    except Exception:  # noqa: BLE001
        inputs = inputs_of(model, images=True)
        return model, inputs, run(model, inputs)


# ---------------------------------------------------------------- ways of running a model


def patched(kind, eager, inputs, expected) -> str:
    """attn_implementation="sdpa" under patch(), where the type has it."""
    try:
        model = build(kind, "sdpa")
    except Exception:  # noqa: BLE001
        return ""
    model.load_state_dict(eager.state_dict())
    without = run(model, inputs)
    with fovea.torch.patch(), observed():
        got = run(model, inputs)
    return differs({}, without, got) and differs(inputs, expected, got)


def in_bfloat16(kind, eager, inputs, expected) -> str:
    """Of an error at most four times eager attention's own: both round in every layer. Where experts are chosen a rounding may choose others."""
    def run_bf16(implementation):
        model = build(kind, implementation)
        model.load_state_dict(eager.state_dict())
        given = {name: x.bfloat16() if x.is_floating_point() else x for name, x in inputs.items()}
        return [x.float() for x in run(model.bfloat16(), given)]

    try:
        without = run_bf16("eager")
    except Exception:  # noqa: BLE001
        return ""
    got = run_bf16("fovea")
    valid = inputs.get("attention_mask")
    for x, e, g in zip(expected, without, got):
        if valid is not None and x.dim() >= 2 and x.shape[:2] == valid.shape:
            x, e, g = (y[valid.bool()] for y in (x, e, g))
        if not x.numel() or not e.isfinite().all():
            continue
        if not g.isfinite().all():
            return "not finite"
        chosen = any("expert" in name or "router" in name for name, _ in eager.named_parameters())
        error, own = float((g - x).abs().max()), float((e - x).abs().max())
        if not chosen and error > 4 * own + 2.0**-6 * float(x.abs().max()):
            return f"error {error:.1e}, eager's {own:.1e}"
    return ""


def generated(kind, eager, inputs, expected) -> str:
    """Eight tokens, greedily, behind padding on the left, with both caches."""
    if CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING or "input_ids" not in inputs or "decoder_input_ids" in inputs:
        return ""
    for cache in ("dynamic", "static"):
        logits, weights = [], None
        for implementation in ("eager", "fovea"):
            try:
                model = build(kind, implementation, AutoModelForCausalLM)
                weights = model.state_dict() if weights is None else weights
                model.load_state_dict(weights)
                torch.manual_seed(2)
                out = model.generate(input_ids=inputs["input_ids"], attention_mask=inputs.get("attention_mask"), max_new_tokens=8, min_new_tokens=8, do_sample=False,
                                     output_logits=True, return_dict_in_generate=True, cache_implementation=cache, disable_compile=True, pad_token_id=0)  # fmt: skip
            except Exception as error:  # noqa: BLE001
                if not logits:
                    break  # a type that eager attention does not generate with either
                return f"{cache} cache: {first_line(error)}"
            logits.append(out.logits)
        if len(logits) == 2:
            for e, g in zip(*logits):
                if remark := differs({}, [e], [g]):
                    return f"{cache} cache: {remark}"
                if not torch.equal(e.argmax(-1), g.argmax(-1)):
                    break  # a tie: what follows is another text
    return ""


def compiled(kind, eager, inputs, expected) -> str:
    if kind not in COMPILED:
        return ""
    torch._dynamo.reset()
    model = build(kind, "fovea")
    model.load_state_dict(eager.state_dict())
    return differs(inputs, expected, run(torch.compile(model, backend="aot_eager"), inputs))


WAYS = {"sdpa under patch()": patched, "bf16": in_bfloat16, "generate()": generated, "torch.compile": compiled}


# ---------------------------------------------------------------- the states


@torch.no_grad()
def check(kind: str, ways=WAYS) -> tuple[str, str]:
    """(state, remark): "fovea", "partly" or "refused"; "crash" or "wrong" where Fovea is at fault; "not run" where it cannot be tried at this size."""
    fovea.torch._warned.clear()
    with seconds(300), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def fallbacks():
            return [str(w.message) for w in caught if issubclass(w.category, fovea.torch.FallbackWarning)]

        try:
            eager, inputs, expected = eager_of(kind)
        except Exception as error:  # noqa: BLE001
            refusal = refusal_of(kind)
            return ("refused", refusal) if refusal else ("not run", first_line(error))
        try:
            model = build(kind, "fovea")
        except Exception as error:  # noqa: BLE001
            if "is refused" in str(error):
                return "refused", str(error).split(": ", 2)[-1]
            return "crash", first_line(error)
        said = fallbacks()
        try:
            model.load_state_dict(eager.state_dict())
            with counted() as calls:
                got = run(model, inputs)
        except Exception as error:  # noqa: BLE001
            return "crash", first_line(error)
        fallen = fallbacks()[len(said) :]
        remark = differs(inputs, expected, got)
        if remark:  # what comes out for padding, which eager attention spreads evenly, and its poolers
            try:
                other = build(kind, "sdpa")
                other.load_state_dict(eager.state_dict())
                remark = differs({}, run(other, inputs), got) and remark
            except Exception:  # noqa: BLE001
                pass
        if remark:
            return "wrong", remark
        for name, way in ways.items():
            try:
                remark = way(kind, eager, inputs, expected)
            except Late:
                raise
            except Exception as error:  # noqa: BLE001
                return "crash", f"{name}: {first_line(error)}"
            if remark:
                return "wrong", f"{name}: {remark}"
    if said:
        return "partly", said[0].split(": ", 1)[-1]
    if not calls and not fallen:
        return "silent", "no layer called Fovea"
    return "fovea", "; ".join(fallen)


def document(rows) -> str:
    """The table of states."""
    kinds = {state: [row for row in rows if row[1] == state] for state in ("fovea", "partly", "refused", "silent", "wrong", "crash", "not run")}
    lines = [
        "# Models of transformers",
        "",
        f"What `attn_implementation=\"fovea\"` is to each model type of transformers {transformers.__version__} with PyTorch {torch.__version__.split('+')[0]}: random models of tiny",
        "sizes, padded on the left, compared with eager attention (and with PyTorch's function where eager differs from it in what is padding). Types that run do so in",
        f"bfloat16, with PyTorch's function under `fovea.torch.patch()`, and generate with dynamic and static caches; {len(COMPILED)} are compiled besides.",
        f"`python python/tests/sweep.py > docs/models.md` has written this page on {datetime.date.today()}, in an hour.",
        "",
        "| | |",
        "|---|---|",
        f"| run on Fovea | {len(kinds['fovea'])} |",
        f"| in part: some layers compute attention themselves, which a warning says | {len(kinds['partly'])} |",
        f"| refused, with a sentence | {len(kinds['refused'])} |",
        f"| without Fovea and without a word | {len(kinds['silent'])} |",
        f"| wrong, or fail where eager attention works | {len(kinds['wrong']) + len(kinds['crash'])} |",
        f"| not compared: they need other input, sizes or packages than this sweep has | {len(kinds['not run'])} |",
    ]
    lines += ["", "## Run on Fovea", "", ", ".join(kind for kind, *_ in kinds["fovea"]) + "."]
    titles = {"partly": "In part", "refused": "Refused", "silent": "Without Fovea", "wrong": "Wrong", "crash": "Fail", "not run": "Not compared"}
    for state, title in titles.items():
        if kinds[state]:
            lines += ["", f"## {title}", "", "| type | |", "|---|---|"] + [f"| {kind} | {remark} |" for kind, _, remark in kinds[state]]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", default=TYPES)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--rows")
    parser.add_argument("--from", nargs="+", dest="files")
    options = parser.parse_args()
    rows = []
    if options.files:
        for file in options.files:
            with open(file) as f:
                rows += [json.loads(line) for line in f]
        print(document(sorted({row[0]: row for row in rows}.values())), end="")
        return
    torch.set_num_threads(1)
    part, of = map(int, options.part.split("/"))
    out = open(options.rows, "a") if options.rows else None  # noqa: SIM115
    for kind in options.types[part::of]:
        try:
            state, remark = check(kind)
        except Exception as error:  # noqa: BLE001
            state, remark = "not run", first_line(error)
        rows.append((kind, state, remark.replace("|", "/")))
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
        if out:
            print(json.dumps(rows[-1]), file=out, flush=True)
    if not out:
        print(document(rows), end="")


if __name__ == "__main__":
    main()
