"""Every model type of the installed transformers at a tiny random size: what state it is in with Fovea, and whether it computes what eager attention computes.

    python python/tests/tiny_models.py [TYPE...] > docs/models.md        # the table; all types by default
"""

import contextlib
import inspect
import os
import signal
import sys
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from transformers import AutoModel, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

import fovea.torch
import fovea.transformers

LAYERS = {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers", "depth", "depths_layers",
          "num_hidden_layers_vision", "speech_encoder_layers", "t2u_encoder_layers", "t2u_decoder_layers", "text_encoder_layers"}  # fmt: skip
WIDTHS = {"hidden_size", "d_model", "n_embd", "embed_dim", "dim", "hidden_dim", "out_hidden_size", "embedding_size", "text_embed_dim"}
INNER = {"intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "ffn_hidden_size", "moe_intermediate_size", "dim_feedforward",
         "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "expert_ffn_hidden_size", "intermediate_size_mlp", "shared_intermediate_size"}  # fmt: skip
HEADS = {"num_attention_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads", "num_heads", "attention_heads"}
GROUPS = {"num_key_value_heads", "num_kv_heads", "n_kv_heads"}
OTHERS = {"head_dim": 16, "d_kv": 16, "attention_head_dim": 16, "kv_channels": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "kv_lora_rank": 16, "q_lora_rank": 16,
          "qk_head_dim": 24, "global_head_dim": 16, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 4, "sliding_window": 7, "vocab_size": 99, "text_vocab_size": 99,
          "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_topk": 2, "moe_k": 2, "n_group": 1, "topk_group": 1,
          "n_shared_experts": 1, "first_k_dense_replace": 1, "image_size": 32, "patch_size": 8, "spatial_merge_size": 2, "num_mel_bins": 16, "max_source_positions": 50,
          "max_position_embeddings": 128, "window_size": 4, "projection_dim": 32, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 99, "num_kv_shared_layers": 0,
          "query_pre_attn_scalar": 16, "vision_feature_layer": -1, "num_codebooks": 2, "audio_vocab_size": 99, "num_queries": 4, "num_query_tokens": 4, "chunk_size": 16,
          "attention_chunk_size": 8, "rotary_dim": 8}  # fmt: skip


def shrink(config: PreTrainedConfig) -> PreTrainedConfig:
    """The sizes of whatever it has by such names; of layers of several kinds one of each, two at least."""
    kinds = getattr(config, "layer_types", None)
    layers = 2
    if isinstance(kinds, (list, tuple)) and kinds:
        chosen = list(dict.fromkeys(kinds))[:4]
        chosen = chosen * 2 if len(chosen) == 1 else chosen
        layers = len(chosen)
    for name in list(vars(config)) + list(getattr(config, "attribute_map", {})):
        value = getattr(config, name, None)
        if isinstance(value, PreTrainedConfig):
            shrink(value)
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int):
            for names, size in ((LAYERS, layers), (WIDTHS, 64), (INNER, 96), (HEADS, 4), (GROUPS, 2 if value > 1 else 1)):
                if name in names:
                    setattr(config, name, size)
            if name in OTHERS:
                setattr(config, name, min(value, OTHERS[name]) if name not in ("vocab_size", "text_vocab_size") else OTHERS[name])
            elif name.endswith("_token_id") or name.endswith("_token_index"):
                setattr(config, name, min(value, 90 + sum(map(ord, name)) % 8) if value > 98 else value)
    if isinstance(getattr(config, "qk_rope_head_dim", None), int):  # latent attention: no groups, and head_dim is that of what rotates
        for name, size in (("head_dim", config.qk_rope_head_dim), ("num_key_value_heads", 4)):
            if isinstance(getattr(config, name, None), int):
                setattr(config, name, size)
    if isinstance(kinds, (list, tuple)) and kinds:
        config.layer_types = chosen
        if isinstance(getattr(config, "mlp_layer_types", None), (list, tuple)):
            config.mlp_layer_types = list(config.mlp_layer_types)[:layers]
    return config


def build(kind: str, implementation: str = "eager"):
    """A model of that type, the same weights each time."""
    config = shrink(CONFIG_MAPPING[kind]())
    torch.manual_seed(0)
    model = AutoModel.from_config(config, attn_implementation=implementation, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            generator = torch.Generator().manual_seed(sum(map(ord, name)) + weights.numel())
            if weights.dim() >= 2:
                scale = 1.5 / max(1, weights[0].numel()) ** 0.5
                weights.copy_(torch.randn(weights.shape, generator=generator) * scale)
            elif "sink" in name:
                weights.copy_(torch.randn(weights.shape, generator=generator))
    return model


def inputs_of(model, length: int = 13) -> dict:
    """What forward() must have: tokens with padding on the left, images, sounds."""
    names = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(1)
    config = model.config
    text = getattr(config, "text_config", config)
    inputs = {}
    main = model.main_input_name
    if main in ("pixel_values", "input_values", "input_features") and "input_ids" not in names:
        vision = getattr(config, "vision_config", config)
        if main == "pixel_values":
            size = getattr(vision, "image_size", 32)
            size = size if isinstance(size, int) else size[0]
            inputs[main] = torch.randn(2, getattr(vision, "num_channels", 3), size, size, generator=generator)
        elif main == "input_values":
            inputs[main] = torch.randn(2, 2000, generator=generator)
        else:
            inputs[main] = torch.randn(2, getattr(config, "num_mel_bins", 16), 2 * getattr(config, "max_source_positions", 20), generator=generator)
    elif "input_ids" in names:
        tokens = min(getattr(text, "vocab_size", 99) or 99, 88)
        inputs["input_ids"] = torch.randint(3, tokens, (2, length), generator=generator)
        if "attention_mask" in names:
            inputs["attention_mask"] = torch.ones(2, length, dtype=torch.long)
            inputs["attention_mask"][0, :4] = 0
        if "pixel_values" in names and names["pixel_values"].default is inspect.Parameter.empty:
            inputs["pixel_values"] = torch.randn(2, 3, 32, 32, generator=generator)
    if "decoder_input_ids" in names:
        inputs["decoder_input_ids"] = torch.randint(3, 88, (2, 7), generator=generator)
    return inputs


def tensors_of(output) -> list[torch.Tensor]:
    values = list(output.values()) if hasattr(output, "values") else list(output) if isinstance(output, (tuple, list)) else [output]
    return [x for x in values if isinstance(x, torch.Tensor) and x.is_floating_point()]


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


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"


def differs(inputs, expected, got) -> str:
    valid = inputs.get("attention_mask")
    worst = 0.0
    for e, g in zip(expected, got):
        if e.shape != g.shape:
            return f"shape {list(g.shape)}, expected {list(e.shape)}"
        if valid is not None and e.dim() >= 2 and e.shape[:2] == valid.shape:
            e, g = e[valid.bool()], g[valid.bool()]
        if e.isfinite().all() and e.numel() > 0:
            worst = max(worst, float((e - g).abs().max() / e.abs().max().clamp(min=1e-3)))
    return "" if worst <= 2e-3 else f"off by {worst:.1e} of the largest value"


@torch.no_grad()
def check(kind: str) -> tuple[str, str]:
    """(state, remark): "fovea", "partly" or "refused"; "crash" or "wrong" where Fovea is at fault; "not run" where it cannot be tried at this size."""
    fovea.torch._warned.clear()
    with seconds(120), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            eager = build(kind)
            # Models that draw random numbers draw the same.
            inputs = inputs_of(eager)
            torch.manual_seed(2)
            expected = tensors_of(eager(**inputs))
        except Exception as error:  # noqa: BLE001
            try:
                build(kind, "fovea")
            except ValueError as refusal:
                if "is refused" in str(refusal):
                    return "refused", str(refusal).split(": ", 2)[-1]
            except Exception:  # noqa: BLE001
                pass
            return "not run", first_line(error)
        try:
            model = build(kind, "fovea")
        except ValueError as error:
            if "is refused" in str(error):
                return "refused", str(error).split(": ", 2)[-1]
            return "crash", first_line(error)
        except Exception as error:  # noqa: BLE001
            return "crash", first_line(error)
        said = [str(w.message) for w in caught if issubclass(w.category, fovea.torch.FallbackWarning)]
        model.load_state_dict(eager.state_dict())
        try:
            torch.manual_seed(2)
            with counted() as calls:
                got = tensors_of(model(**inputs))
        except Exception as error:  # noqa: BLE001
            return "crash", first_line(error)
        fallbacks = [str(w.message) for w in caught if issubclass(w.category, fovea.torch.FallbackWarning)][len(said) :]
    try:
        remark = differs(inputs, expected, got)
        if remark:  # what comes out for padding, which eager attention spreads evenly, and its poolers
            other = build(kind, "sdpa")
            other.load_state_dict(eager.state_dict())
            torch.manual_seed(2)
            if not differs({}, tensors_of(other(**inputs)), got):
                remark = ""
    except Exception:  # noqa: BLE001
        pass
    if remark:
        return "wrong", remark
    if said:
        return "partly", said[0].split(": ", 1)[-1]
    if not calls and not fallbacks:
        return "silent", "no layer called Fovea"
    return "fovea", "; ".join(fallbacks)


TYPES = sorted(kind for kind in CONFIG_MAPPING if CONFIG_MAPPING[kind] in MODEL_MAPPING)


def document(rows) -> str:
    """The table of states."""
    kinds = {state: [row for row in rows if row[1] == state] for state in ("fovea", "partly", "refused", "silent", "wrong", "crash", "not run")}
    lines = [
        "# Models of transformers",
        "",
        f"What `attn_implementation=\"fovea\"` is to each model type of transformers {transformers.__version__} with PyTorch {torch.__version__.split('+')[0]}: random models of tiny",
        "sizes, padded on the left, compared with eager attention (and with PyTorch's function where eager differs from it in what is padding).",
        "`python python/tests/tiny_models.py > docs/models.md` writes this page, in an hour.",
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
    for state, title in (("fovea", "Run on Fovea"), ("not run", "Not compared")):
        lines += ["", f"## {title}", "", ", ".join(kind for kind, *_ in kinds[state]) + "."]
    for state, title in (("partly", "In part"), ("refused", "Refused"), ("silent", "Without Fovea"), ("wrong", "Wrong"), ("crash", "Fail")):
        if kinds[state]:
            lines += ["", f"## {title}", "", "| type | |", "|---|---|"] + [f"| {kind} | {remark} |" for kind, _, remark in kinds[state]]
    return "\n".join(lines) + "\n"


def main(kinds):
    torch.set_num_threads(1)
    rows = []
    for kind in kinds:
        try:
            state, remark = check(kind)
        except Exception as error:  # noqa: BLE001
            state, remark = "not run", first_line(error)
        rows.append((kind, state, remark.replace("|", "/")))
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    print(document(rows), end="")


if __name__ == "__main__":
    main(sys.argv[1:] or TYPES)
