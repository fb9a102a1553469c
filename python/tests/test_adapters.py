"""transformers: layers that compute attention themselves and have an adapter, against what they are without."""

import copy
import os
import pickle
import warnings

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import fovea.torch  # noqa: E402
import fovea.transformers  # noqa: E402
from small_models import randomised  # noqa: E402

FALCON = dict(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128)
KINDS = {
    "bloom": lambda: transformers.BloomConfig(vocab_size=99, hidden_size=64, n_layer=2, n_head=4),
    "bloom, heads no power of two": lambda: transformers.BloomConfig(vocab_size=99, hidden_size=48, n_layer=2, n_head=3),
    "mpt": lambda: transformers.MptConfig(vocab_size=99, d_model=64, n_layers=2, n_heads=4, max_seq_len=64),
    "mpt, clipped": lambda: transformers.MptConfig(vocab_size=99, d_model=48, n_layers=2, n_heads=3, max_seq_len=64, attn_config={"clip_qkv": 0.5, "softmax_scale": 0.3}),
    "falcon": lambda: transformers.FalconConfig(**FALCON),
    "falcon, ALiBi": lambda: transformers.FalconConfig(**FALCON, alibi=True, multi_query=False),
    "falcon, groups": lambda: transformers.FalconConfig(**FALCON, new_decoder_architecture=True, num_kv_heads=2),
    "mpnet": lambda: transformers.MPNetConfig(vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4),
}
# Eager Falcon adds ALiBi twice, in the layer and in the mask; with PyTorch's function it is there once, as in Fovea.
OTHER = {"falcon, ALiBi": "sdpa"}
LANGUAGE = [kind for kind in KINDS if kind != "mpnet"]


@pytest.fixture(autouse=True)
def no_grad():
    fovea.torch._warned.clear()
    with torch.no_grad():
        yield


def build(kind, implementation=None):
    torch.manual_seed(0)
    auto = transformers.AutoModel if kind == "mpnet" else transformers.AutoModelForCausalLM
    return randomised(auto.from_config(KINDS[kind](), attn_implementation=implementation or OTHER.get(kind, "eager"), dtype=torch.float32).eval())


def tokens(*shape, seed=1):
    return torch.randint(3, 99, shape, generator=torch.Generator().manual_seed(seed))


def close(expected, got):
    return torch.allclose(got, expected, rtol=0, atol=1e-5 * float(expected.abs().max()) + 1e-5)


@pytest.mark.parametrize("built", [True, False], ids=["built so", "told later"])
@pytest.mark.parametrize("padding", ["none", "right", "left", "holes"])
@pytest.mark.parametrize("kind", KINDS)
def test_same_as_without(kind, padding, built, calls):
    ids, mask = tokens(3, 20), torch.ones(3, 20, dtype=torch.long)
    if padding == "right":
        mask[0, 11:], mask[1, 19:] = 0, 0
    elif padding == "left":
        mask[0, :9], mask[1, :1] = 0, 0
    elif padding == "holes":
        mask[0, 5:7], mask[2, 0] = 0, 0
    model = build(kind)
    expected = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    with warnings.catch_warnings():
        warnings.simplefilter("error", fovea.torch.FallbackWarning)
        if built:
            model = build(kind, "fovea")
        else:
            model.set_attn_implementation("fovea")
        got = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    assert len(calls) == 2
    for e, g in zip(expected, got):
        assert g.isfinite().all() and close(e[mask.bool()], g[mask.bool()])


# Falcon with ALiBi cannot have a static cache, by itself: it takes the mask of such a cache, [B, 1, Tq, Tk], for one of tokens.
@pytest.mark.parametrize("kind, cache", [(kind, cache) for kind in LANGUAGE for cache in ("dynamic", "static") if (kind, cache) != ("falcon, ALiBi", "static")])
def test_generation(kind, cache):
    ids, mask = tokens(2, 10, seed=2), torch.ones(2, 10, dtype=torch.long)
    mask[0, :4] = 0
    logits = {}
    for implementation in (OTHER.get(kind, "eager"), "fovea"):
        model = build(kind, implementation)
        logits[implementation] = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=12, min_new_tokens=12, do_sample=False, output_logits=True, use_cache=True,
                                                return_dict_in_generate=True, cache_implementation=cache, disable_compile=True, pad_token_id=0).logits  # fmt: skip
    for e, g in zip(*logits.values()):
        assert close(e, g)
        if not torch.equal(e.argmax(-1), g.argmax(-1)):
            break  # a tie: what follows is another text


@pytest.mark.parametrize("kind", KINDS)
def test_compiled(kind):
    """With masks of padding, and for other input than the first."""
    torch._dynamo.reset()
    model = build(kind)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :3] = 0
    inputs = [dict(input_ids=tokens(2, 12, seed=n), attention_mask=mask) for n in (1, 2)]
    expected = [model(**x)[0] for x in inputs]
    model.set_attn_implementation("fovea")
    compiled = torch.compile(model, backend="eager")
    for e, x in zip(expected, inputs):
        assert close(e[mask.bool()], compiled(**x)[0][mask.bool()])


@pytest.mark.parametrize("kind", KINDS)
def test_training_falls_back(kind):
    ids, gradients = tokens(2, 10, seed=5), []
    for implementation in (OTHER.get(kind, "eager"), "fovea"):
        model = build(kind, implementation)
        with torch.enable_grad(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model(input_ids=ids)[0].square().mean().backward()
        assert any("gradients" in str(w.message) for w in caught) == (implementation == "fovea")
        gradients.append({n: w.grad for n, w in model.named_parameters() if w.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for n, e in gradients[0].items():
        assert torch.allclose(e, gradients[1][n], atol=1e-4 * float(e.abs().max()) + 1e-6), n


@pytest.mark.parametrize("kind", ["bloom", "falcon", "mpnet", "mpt"])
def test_attentions_are_given_or_refused(kind):
    model, ids = build(kind), tokens(2, 9)
    expected = model(input_ids=ids, output_attentions=True).attentions
    model.set_attn_implementation("fovea")
    if kind == "mpt":
        with pytest.raises(ValueError, match="eager"):
            model(input_ids=ids, output_attentions=True)
        return
    got = model(input_ids=ids, output_attentions=True).attentions
    assert len(got) == len(expected) == 2
    for e, g in zip(expected, got):
        assert torch.allclose(e, g, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_life(kind):
    """Models are copied and pickled with their adapters, and leave them where they are told another implementation."""
    model, ids = build(kind), tokens(1, 9)
    classes, expected = [type(x) for x in model.modules()], model(input_ids=ids)[0]
    model.set_attn_implementation("fovea")
    assert [type(x) for x in model.modules()] != classes
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert [type(x) for x in other.modules()] == [type(x) for x in model.modules()]
        assert torch.equal(other(input_ids=ids)[0], model(input_ids=ids)[0])
    model.set_attn_implementation(OTHER.get(kind, "eager"))
    assert [type(x) for x in model.modules()] == classes and torch.equal(model(input_ids=ids)[0], expected)
