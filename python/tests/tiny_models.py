"""A tiny random model of every model type of the installed transformers, and what its forward() must have."""

import inspect
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from transformers import AutoModel, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

TYPES = sorted(kind for kind in CONFIG_MAPPING if CONFIG_MAPPING[kind] in MODEL_MAPPING)

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


# Of what is None unless somebody says it, in the second attempt.
UNSAID = {"head_dim": 16, "vocab_size": 99, "pad_token_id": 1, "num_experts_per_tok": 2, "n_routed_experts": 4, "prediction_length": 4, "topk_group": 1, "n_group": 1,
          "num_key_value_heads": 2, "dropout": 0.0}  # fmt: skip
# Of layers that differ from the others, so that they still do.
OVERRIDES = {"head_dim": 32, "num_key_value_heads": 1, "num_attention_heads": 8, "sliding_window": 5, "intermediate_size": 64, "num_experts": 2}


def value_of(config, name):
    try:
        return getattr(config, name, None)
    except Exception:  # noqa: BLE001  # what no layer has alone
        return None


def give(config, name, value):
    try:
        setattr(config, name, value)
    except AttributeError:  # made of other values
        pass


def size_of(name, value, layers):
    for names, size in ((LAYERS, layers), (WIDTHS, 64), (INNER, 96), (HEADS, 4), (GROUPS, 2 if value > 1 else 1)):
        if name in names:
            value = size
    if name in OTHERS:
        return OTHERS[name] if name in ("vocab_size", "text_vocab_size") else min(value, OTHERS[name])
    if (name.endswith("_token_id") or name.endswith("_token_index")) and value > 98:
        return min(value, 90 + sum(map(ord, name)) % 8)
    return value


def shrink_sections(config):
    """What of a head turns with which axis: as large in proportion."""
    rope = value_of(config, "rope_parameters") or value_of(config, "rope_scaling")
    if not isinstance(rope, dict) or not isinstance(rope.get("mrope_section"), (list, tuple)):
        return
    size = value_of(config, "head_dim") or config.hidden_size // config.num_attention_heads
    half = int(size * (rope.get("partial_rotary_factor") or value_of(config, "partial_rotary_factor") or 1.0)) // 2
    old = list(rope["mrope_section"])
    sections = [max(1, n * half // sum(old)) for n in old]
    sections[0] += half - sum(sections)
    rope["mrope_section"] = sections


def shrink(config: PreTrainedConfig, unsaid: bool = False) -> PreTrainedConfig:
    """The sizes of whatever it has by such names; of layers of several kinds one of each, two at least."""
    spec = vars(config).get("_heterogeneity_spec")
    overrides = dict(spec.per_layer_overrides) if spec is not None else {}
    if spec is not None:
        config.per_layer_config = None
    kinds = value_of(config, "layer_types")
    layers, chosen = 2, None
    if isinstance(kinds, (list, tuple)) and kinds:
        chosen = list(dict.fromkeys(kinds))[:4]
        firsts = [list(kinds).index(kind) for kind in chosen]
        chosen, firsts = (chosen * 2, firsts * 2) if len(chosen) == 1 else (chosen, firsts)
        layers = len(chosen)
    for name in list(vars(config)) + list(getattr(config, "attribute_map", {})):
        value = value_of(config, name)
        if isinstance(value, PreTrainedConfig):
            shrink(value, unsaid)
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int):
            give(config, name, size_of(name, value, layers))
        elif isinstance(value, (list, tuple)) and value and all(type(x) is int for x in value) and (name in HEADS or name == "depths"):
            give(config, name, type(value)([4 if name in HEADS else 1] * len(value)))
        elif value is None and unsaid and name in UNSAID:
            give(config, name, UNSAID[name])
    if isinstance(value_of(config, "qk_rope_head_dim"), int):  # latent attention: no groups, and head_dim is that of what rotates
        for name, size in (("head_dim", config.qk_rope_head_dim), ("num_key_value_heads", 4)):
            if isinstance(value_of(config, name), int):
                give(config, name, size)
    if chosen is not None:
        give(config, "layer_types", chosen)
        if isinstance(value_of(config, "mlp_layer_types"), (list, tuple)):
            give(config, "mlp_layer_types", list(config.mlp_layer_types)[:layers])
    if spec is not None:
        kept = {i: overrides[first] for i, first in enumerate(firsts if chosen is not None else range(layers)) if first in overrides}
        config.per_layer_config = {i: {n: OVERRIDES.get(n, x) if isinstance(x, int) and not isinstance(x, bool) else x for n, x in names.items()} for i, names in kept.items()}
    shrink_sections(config)
    return config


def randomise(model):
    with torch.no_grad():
        for name, weights in model.named_parameters():
            generator = torch.Generator().manual_seed(sum(map(ord, name)) + weights.numel())
            if weights.dim() >= 2 and weights.numel():
                scale = 1.5 / max(1, weights[0].numel()) ** 0.5
                weights.copy_(torch.randn(weights.shape, generator=generator) * scale)
            elif "sink" in name:
                weights.copy_(torch.randn(weights.shape, generator=generator))
    return model


def build(kind: str, implementation: str = "eager", auto=AutoModel):
    """A model of that type, the same weights each time."""

    def make(unsaid):
        torch.manual_seed(0)
        return auto.from_config(shrink(CONFIG_MAPPING[kind](), unsaid), attn_implementation=implementation, dtype=torch.float32).eval()

    try:
        model = make(False)
    except ImportError:
        raise
    except Exception as error:  # noqa: BLE001
        if "is refused" in str(error):
            raise
        model = make(True)
    return randomise(model)


# ---------------------------------------------------------------- inputs


def part_of(config, *names):
    """The configuration of a part, or the whole."""
    return next((x for x in (value_of(config, name) for name in names) if isinstance(x, PreTrainedConfig)), config)


def image(config, generator):
    vision = part_of(config, "vision_config", "backbone_config")
    size = value_of(vision, "image_size") or 32
    size = size if isinstance(size, int) else size[0] if isinstance(size, (list, tuple)) else 32
    return torch.randn(2, value_of(vision, "num_channels") or 3, size, size, generator=generator)


def patches(config, names, generator):
    """For encoders of images of any size: their patches in rows, and the grid that these make."""
    vision = part_of(config, "vision_config")
    size, channels = value_of(vision, "patch_size") or 8, value_of(vision, "in_channels") or value_of(vision, "num_channels") or 3
    times = value_of(vision, "temporal_patch_size") or 1
    rows = torch.randn(16, channels * times * size * size, generator=generator)
    return {
        **{name: rows for name in ("hidden_states", "pixel_values") if name in names},
        **{name: torch.tensor([[1, 4, 4]]) for name in ("grid_thw", "image_grid_thw") if name in names},
    }


def sound(config, names, generator):
    audio = part_of(config, "encoder_config", "audio_config")
    if "input_values" in names:
        return {"input_values": torch.randn(2, 2000, generator=generator)}
    bins = value_of(audio, "num_mel_bins") or value_of(audio, "input_dim") or value_of(audio, "feature_size") or 16
    length = 2 * (value_of(audio, "max_source_positions") or 20)
    by_time = "parakeet" in audio.model_type or "lasr" in audio.model_type or "speech" in audio.model_type or "nemotron" in audio.model_type
    features = torch.randn(2, length, bins, generator=generator) if by_time else torch.randn(2, bins, length, generator=generator)
    masks = {name: torch.ones(2, length, dtype=torch.long) for name in ("input_features_mask",) if name in names}
    return {"input_features": features, **masks}


def inputs_of(model, length: int = 13, images: bool = False) -> dict:
    """What forward() must have: tokens with padding on the left, images, sounds. With `images` those too that it can do without."""
    parameters = inspect.signature(model.forward).parameters
    names = set(parameters)
    needed = {name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    generator = torch.Generator().manual_seed(1)
    config = model.config
    text = getattr(config, "text_config", config)
    inputs = {}
    if names & {"grid_thw", "image_grid_thw"} and "input_ids" not in names:
        return patches(config, names, generator)
    main = model.main_input_name
    if "input_ids" in names:
        tokens = min(value_of(text, "vocab_size") or 99, 88)
        inputs["input_ids"] = torch.randint(3, tokens, (2, length), generator=generator)
        if "attention_mask" in names:
            inputs["attention_mask"] = torch.ones(2, length, dtype=torch.long)
            inputs["attention_mask"][0, :4] = 0
        if "qformer_input_ids" in needed:
            inputs["qformer_input_ids"] = inputs["input_ids"]
    elif main in ("input_values", "input_features"):
        inputs |= sound(config, names, generator)
    if "pixel_values" in names and ("pixel_values" in needed or images or main == "pixel_values" and "input_ids" not in names):
        inputs["pixel_values"] = image(config, generator)
    if images and "input_ids" in names and "input_features" in names:
        inputs |= sound(config, names, generator)
    for name in ("query_embeds", "inputs_embeds", "hidden_states", "encoder_hidden_states"):
        if name in needed:
            inputs[name] = torch.randn(2, length, config.hidden_size, generator=generator)
    if "decoder_input_ids" in names:
        inputs["decoder_input_ids"] = torch.randint(3, 88, (2, 7), generator=generator)
    return inputs


def tensors_of(output) -> list[torch.Tensor]:
    values = list(output.values()) if hasattr(output, "values") else list(output) if isinstance(output, (tuple, list)) else [output]
    return [x for x in values if isinstance(x, torch.Tensor) and x.is_floating_point()]
