"""fovea.torch.enable_context_parallel(): PyTorch's ring attention on CPUs gives what one process gives, forward and backward."""

import math

import pytest

torch = pytest.importorskip("torch")

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

import fovea.torch  # noqa: E402
import ranks  # noqa: E402
import ring_cases  # noqa: E402
from fovea import _context_parallel  # noqa: E402
from ring_cases import CASES, attend, tensors  # noqa: E402
from torch.distributed.tensor.experimental._context_parallel import _attention  # noqa: E402

SIZES = (2, 3, 4)


@pytest.fixture(scope="module", params=SIZES)
def found(request, tmp_path_factory):
    """What the ranks found."""
    return ranks.run(ring_cases.all_cases, request.param, tmp_path_factory.mktemp("ring"))


def bounds(case, size, q, k, v, dout):
    """How far out, dq, dk and dv may be from float64's: docs/precision.md and docs/gradients.md for each of `size` parts, and what roundings to 16 bits make of a term."""
    group = case.heads // case.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale = case.scale or q.shape[-1] ** -0.5
    s = scale * q @ k.mT
    p = torch.softmax(s.masked_fill(~torch.ones_like(s, dtype=torch.bool).tril(), -torch.inf) if case.causal else s, -1)
    dp = dout @ v.mT
    relative = 1e-5 + 8 * 2.0**-24 * max(float(s.abs().max()), float(torch.logsumexp(s, -1).abs().max())) + 4 * size * 2.0**-24
    rows = math.sqrt(q.shape[2] * group)
    factors = [v.abs().max(), *(size * x for x in (scale * dp.abs().max() * k.abs().max(), rows * scale * dp.abs().max() * q.abs().max(), rows * dout.abs().max()))]

    def of_kv_heads(x):
        return x.unflatten(1, (case.kv_heads, group)).sum(2)

    # Of every term those of P, dS, parts of out (twice, in delta), parts of gradients and the result.
    unit = 6 * torch.finfo(case.dtype).eps / 2 if case.dtype != torch.float32 else 0.0
    ds = scale * p * (dp.abs() + (dout * (p @ v)).abs().sum(-1, keepdim=True))
    terms = [p @ v.abs(), ds @ k.abs(), of_kv_heads(ds.mT @ q.abs()), of_kv_heads(p.mT @ dout.abs())]
    return [relative * factor + unit * term for factor, term in zip(factors, terms)]


@pytest.mark.parametrize("patched", [False, True], ids=["PyTorch's kernel", "Fovea's"])
@pytest.mark.parametrize("name", CASES)
def test_same_as_one_process(found, name, patched):
    case, size = CASES[name], len(found)
    exact = [x.double() for x in tensors(case)]
    want, allowed = attend(case, *exact), bounds(case, size, *exact)
    of_own_shard = [torch.cat(x, 2) for x in zip(*(attend(case, *shard) for shard in zip(*(x.chunk(size, 2) for x in exact))))]
    for i in range(4):
        for got, _ in (rank[name, patched] for rank in found):
            assert got[i].dtype == case.dtype
            assert bool(((got[i].double() - want[i]).abs() <= allowed[i]).all())
        assert bool(((of_own_shard[i] - want[i]).abs() > 2 * allowed[i]).any())  # who forgets the other ranks is found out
    assert all(torch.equal(a, b) for rank in found for a, b in zip(rank[name, patched][0], found[0][name, patched][0]))


def test_fovea_computes_the_parts(found):
    """One run for each shard of keys that a rank's queries see, of those that are counted: the forward pass."""
    size = len(found)
    for rank, results in enumerate(found):
        for name, case in CASES.items():
            assert results[name, False][1] == 0
            assert results[name, True][1] == (rank + 1 if case.causal and not case.balance else size)


def test_refusals(tmp_path):
    for found in ranks.run(ring_cases.refusals, 2, tmp_path):
        assert found["mask"].startswith("NotImplementedError: context_parallel on CPUs: attn_mask")
        assert found["dropout"] == "NotImplementedError: context_parallel on CPUs: dropout_p = 0.5, expected 0"
        assert found["axes"] == "ValueError: context_parallel on CPUs: query has 3 axes, expected 4: [B, H, T / N, d]"
        assert found["value size"] == "NotImplementedError: context_parallel on CPUs: value.shape[3] = 2, expected 4 (key.shape[3])"
        assert found["uneven"] == "ValueError: context_parallel on CPUs: buffers[0].shape[2] = 9, expected a multiple of 2 (ranks)"
        assert found["empty"].startswith("ValueError: context_parallel on CPUs: query is [0, 2, 4, 4]")
        assert found["causal, fewer keys"].startswith("NotImplementedError: is_causal")
        assert found["after"] == "nothing"
        assert found["within"].endswith("within context_parallel(): enter it before")


def state():
    table = dict(_attention.custom_ops)
    return table, _attention._SDPAMerger, _attention._ContextParallel.sdpa_input_fn, _attention._context_parallel_buffers


def test_it_ends():
    before = state()
    for _ in range(2):
        with fovea.torch.enable_context_parallel(), fovea.torch.enable_context_parallel():
            assert len(state()[0]) == len(before[0]) + 2
        assert state() == before
    with pytest.raises(KeyError), fovea.torch.enable_context_parallel():
        raise KeyError
    assert state() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.setitem(_context_parallel._SIGNATURES, "_templated_ring_attention", ("group", "op")), r"_templated_ring_attention is .*expected .*\(group, op\)"),
        (lambda m: m.delattr(_attention, "_SDPAMerger"), "_SDPAMerger._merge_one is missing"),
        (lambda m: m.delattr(_attention, "custom_ops"), "custom_ops is missing"),
        (lambda m: m.setattr(_context_parallel, "_MODULE", "torch.distributed.nowhere"), "torch.distributed.nowhere is missing"),
        (lambda m: m.setitem(_context_parallel._SCHEMAS, "aten::_no_operator", "()"), "aten::_no_operator is missing"),
    ],
)
def test_an_unknown_pytorch_is_refused(change, said, monkeypatch):
    change(monkeypatch)
    with pytest.raises(RuntimeError, match=f"PyTorch {torch.__version__.replace('+', '.')} .tested with 2.13.0.: .*{said}"), fovea.torch.enable_context_parallel():
        pass
    monkeypatch.undo()
    with fovea.torch.enable_context_parallel():
        pass


@pytest.mark.parametrize("partial", [False, True])
def test_rows_that_see_no_key_of_a_shard_merge_exactly(partial):
    """In whichever part they see none, and whatever stands in its out."""
    torch.manual_seed(0)
    out, other = torch.randn(2, 1, 1, 4, 8)
    lse, other_lse = torch.randn(2, 1, 1, 4)
    lse[..., 2], out[:, :, 2] = -torch.inf, torch.nan
    other_lse[..., 3], other[:, :, 3] = -torch.inf, torch.nan
    lse[..., 1] = other_lse[..., 1] = -torch.inf
    with fovea.torch.enable_context_parallel():
        merger = _attention._SDPAMerger(convert_to_f32=True, seq_dim=2)
        merger.step(out, lse, False)
        merger.step(other[:, :, 2:] if partial else other, other_lse[..., 2:] if partial else other_lse, partial)
        got, got_lse = merger.results()
    assert torch.equal(got[:, :, 2], other[:, :, 2]) and torch.equal(got_lse[..., 2], other_lse[..., 2])
    assert torch.equal(got[:, :, 3], out[:, :, 3]) and torch.equal(got_lse[..., 3], lse[..., 3])
    if partial:
        assert torch.equal(got[:, :, 0], out[:, :, 0]) and torch.equal(got_lse[..., 0], lse[..., 0])
    else:
        want, want_lse = fovea.merge([(out, lse), (other, other_lse)])
        assert torch.allclose(got[:, :, 0], torch.as_tensor(want)[:, :, 0], rtol=0, atol=1e-6) and got_lse[0, 0, 0] == pytest.approx(float(want_lse[0, 0, 0]), abs=1e-6)
        assert not got[:, :, 1].any() and bool((got_lse[..., 1] == -torch.inf).all())
