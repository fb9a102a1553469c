"""transformers: small random models of each kind of attention against their eager implementation: masks, padding, weights, keywords."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import fovea._models  # noqa: E402
import fovea.torch  # noqa: E402
import fovea.transformers  # noqa: E402
from small_models import MODELS, SMALL, build, hidden, randomised  # noqa: E402


@pytest.fixture(autouse=True)
def no_grad():
    fovea.torch._warned.clear()
    with torch.no_grad():
        yield


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
