"""transformers: small random models generated with, trained, in float64, under autocast, traced, compiled and batched."""

import os
import warnings

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import fovea.torch  # noqa: E402
import fovea.transformers  # noqa: E402
from small_models import MODELS, SMALL, build, hidden, randomised  # noqa: E402


@pytest.fixture(autouse=True)
def no_grad():
    fovea.torch._warned.clear()
    with torch.no_grad():
        yield


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


@pytest.mark.filterwarnings("ignore")
def test_continuous_batching_runs_patched(calls):
    """With attn_implementation="sdpa", under patch(): the same tokens, by Fovea."""
    pytest.importorskip("psutil")  # which it asks how much memory there is
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SMALL), attn_implementation="sdpa").eval()
    settings = transformers.GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0, num_blocks=16, max_batch_tokens=64)
    prompts = [[5, 6, 7, 8], [9, 10, 11]]
    expected = [x.generated_tokens for x in model.generate_batch(inputs=prompts, generation_config=settings).values()]
    assert not calls and len(expected) == 2
    with fovea.torch.patch():
        got = [x.generated_tokens for x in model.generate_batch(inputs=prompts, generation_config=settings).values()]
    assert calls and got == expected
