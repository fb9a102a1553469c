"""examples/distributed: decoding over keys that lie on several processes."""

import re

import pytest

torch = pytest.importorskip("torch")

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

import distributed_cases  # noqa: E402
import fovea  # noqa: E402
import ranks  # noqa: E402
from distributed_cases import DV, HKV, HQ, PAGE, PAGES, PROMPT, STEPS, B, data  # noqa: E402


@pytest.fixture(scope="module", params=[2, 3, 4])
def found(request, tmp_path_factory):
    return ranks.run(distributed_cases.steps, request.param, tmp_path_factory.mktemp("steps"), 0, 0.0)


def expected(lengths, q, k, v):
    """(out, lse) of what each rank has, by itself and in one process, merged in the order of the keys."""
    begin, parts = torch.zeros(B, dtype=torch.int64), []
    for mine in lengths:
        out, lse = torch.zeros(*q.shape[:3], DV), torch.full(q.shape[:3], -torch.inf)
        for b in range(B):
            own = slice(int(begin[b]), int(begin[b] + mine[b]))
            if mine[b]:
                out[b : b + 1], lse[b : b + 1] = fovea.attention(q[b : b + 1], k[b : b + 1, :, own].contiguous(), v[b : b + 1, :, own].contiguous(), return_lse=True)
        begin += mine
        parts.append((out, lse))
    return fovea.merge(parts)


def test_same_bits_as_one_process_and_on_each_rank(found):
    k, v, q = data()
    for i in range(STEPS):
        lengths = found[0][i][0]
        assert lengths.sum(0).tolist() == [PROMPT + i + 1] * B
        for rank in found:
            assert torch.equal(rank[i][0], lengths)
            for got, want in zip(rank[i][1:3], expected(lengths, q[i], k, v)):
                assert torch.equal(got, torch.as_tensor(want))


def test_both_ways_against_float64(found):
    k, v, q = data()
    for i in range(STEPS):
        keys, values = (x[:, :, : PROMPT + i + 1].double().repeat_interleave(HQ // HKV, 1) for x in (k, v))
        s = q[i].double() @ keys.mT / keys.shape[-1] ** 0.5
        want, want_lse = torch.softmax(s, -1) @ values, torch.logsumexp(s, -1)
        relative = 1e-5 + 8 * 2.0**-24 * float(s.abs().max())  # docs/precision.md
        for rank in found:
            _, out, lse, summed, summed_lse = rank[i]
            for got, got_lse in ((out, lse), (summed, summed_lse)):
                assert float((got - want).abs().max()) <= relative * float(values.abs().max())
                assert float((got_lse - want_lse).abs().max()) <= relative
        without = torch.softmax(s[..., :-1], -1) @ values[:, :, :-1]
        assert float((without - want).abs().max()) > 10 * relative * float(values.abs().max())  # a lost key is found out


def test_new_tokens_go_where_there_is_room(found):
    """To the first rank that has some: nothing lies before a rank's keys that another could still take, and a rank without pages has none."""
    last = found[0][-1][0]
    used = -(-last // PAGE)
    assert (used.sum(1) <= torch.tensor(PAGES[len(found)])).all()
    for b in range(B):
        holders = [r for r in range(len(found)) if last[r, b]]
        assert all(last[r, b] % PAGE == 0 and used[r].sum() == PAGES[len(found)][r] for r in holders[:-1])
    assert len(found) < 4 or int((last[:, 0] > 0).sum()) == 3
    assert [bool(x.any()) for x in last] == [pages > 0 for pages in PAGES[len(found)]]  # it went on in all others


def test_the_order_of_arrival_changes_no_bit(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    one = ranks.run(distributed_cases.steps, 3, folders[0], 0, 0.0)
    two = ranks.run(distributed_cases.steps, 3, folders[1], 2, 0.01)
    for a, b in zip(one[0], two[1]):
        assert all(torch.equal(x, y) for x, y in zip(a[:3], b[:3]))


def test_refusals(tmp_path):
    root, other = ranks.run(distributed_cases.refusals, 2, tmp_path, collective_seconds=5)
    assert root["settings"] == other["settings"] and re.match(r'ValueError: rank 1 has .*"heads": 6.*expected .*"heads": 4', root["settings"])
    assert root["keys"] == "ValueError: k.shape = [2, 2, 1, 15], expected [2, 2, 1, 16]"
    assert root["tokens"] == "ValueError: v.shape = [2, 2, 2, 24], expected [2, 2, 1, 24]"
    assert root["axes"] == "ValueError: k.shape = [2, 20, 16], expected [2, 2, 'tokens', 16]"
    assert root["type"] == "ValueError: k is ndarray, expected a tensor of floats"
    assert root["room"] == "MemoryError: no rank has room for token 16 of 20 of sequence 0"
    assert root["query"] == "ValueError: q.shape = [2, 4, 2, 15], expected [2, 4, 2, 16]"
    assert other["not root"] == "ValueError: rank 1 gives a tensor, expected only rank 0 to (root)"
    for found in (root, other):
        out, lse = found["no keys"]
        assert not out.any() and bool((lse == -torch.inf).all())
        assert found["after"][0].any() and torch.equal(found["after"][0], root["after"][0])
        assert found["far"].startswith("OverflowError: the bound of q·k")
        assert torch.equal(found["far, gathered"], torch.ones(B, HQ, 1, DV))
    assert other["order"] == "RuntimeError: rank 1 calls append() where rank 0 (root) calls attend()"
    assert root["order"].startswith("RankLost")


@pytest.mark.parametrize(("how", "dies"), [("killed", 0), ("killed", 1), ("killed", 2), ("silent", 1)])
def test_a_lost_rank_is_an_error_on_all_others(how, dies, tmp_path):
    timeout = 3
    for rank, found in enumerate(ranks.run(distributed_cases.death, 3, tmp_path, dies, how, collective_seconds=timeout, may_die=(dies,))):
        if rank != dies:
            first, seconds, second = found
            assert first.startswith(f"RankLost: rank {rank}: ") and second == "RankLost: a rank was lost before"
            assert seconds < 3 * timeout  # a call has three messages


@pytest.mark.parametrize("words", [[], ["--one-all-reduce"], ["--k-type", "f16"]])
def test_the_program(words, tmp_path):
    lines = ranks.run(distributed_cases.program, 2, tmp_path, ["--tokens", "3", "--prompt", "40", *words])
    for rank, line in enumerate(lines):
        error = float(re.fullmatch(rf"rank {rank} of 2: \[\d+, \d+\] keys, [\d.]+ ms a step, error (\S+)\n", line)[1])
        assert error < (5e-3 if "f16" in words else 1e-5)
