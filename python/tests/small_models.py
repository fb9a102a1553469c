"""Small random models of transformers, one for each kind of attention."""

import warnings

import torch
import transformers

import fovea.torch

SMALL = dict(vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             head_dim=16, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip


def build(name):
    torch.manual_seed(0)
    c = transformers
    configs = {
        "llama": lambda: c.LlamaConfig(**SMALL),
        "mistral": lambda: c.MistralConfig(**SMALL, sliding_window=7),
        "gemma2": lambda: c.Gemma2Config(**SMALL, sliding_window=7, attn_logit_softcapping=2.0, query_pre_attn_scalar=16),
        "gpt_oss": lambda: c.GptOssConfig(**SMALL, sliding_window=7, num_local_experts=2, num_experts_per_tok=1, layer_types=["sliding_attention", "full_attention"]),
        "bert": lambda: c.BertConfig(vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4),
    }
    config = configs[name]()
    model = (c.AutoModel if name == "bert" else c.AutoModelForCausalLM).from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    if name == "gpt_oss":
        for layer in model.model.layers:
            torch.nn.init.normal_(layer.self_attn.sinks)
    return model


MODELS = ["llama", "mistral", "gemma2", "gpt_oss", "bert"]


def randomised(model):
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() >= 2:
                torch.nn.init.normal_(weights, std=0.3, generator=torch.Generator().manual_seed(weights.numel()))
    return model


def hidden(model, implementation, **inputs):
    model.set_attn_implementation(implementation)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fovea.torch.FallbackWarning)
        return model(**inputs, output_hidden_states=True)
