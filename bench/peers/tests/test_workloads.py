"""Shapes, visible pairs and flops, as src/measure/workload.cc counts them."""

import glob
import json
import os
import re

import numpy as np
import pytest
import tensors
import workloads

BENCH = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_names_are_those_of_the_program():
    with open(os.path.join(os.path.dirname(BENCH), "src/measure/workload.cc")) as file:
        table = file.read().partition("kNamed[] = {")[2].partition("};")[0]
    assert dict(re.findall(r'\{"(\w+)",\s*"([^"]+)"\}', table)) == workloads._NAMED


def test_flops_and_kv_bytes_are_those_of_recorded_runs():
    flops = {}
    for path in glob.glob(os.path.join(BENCH, "records", "*.jsonl")):
        with open(path) as file:
            for line in map(json.loads, file):
                # Peers' own records have kinds; what no peer has is not theirs to know.
                if "kind" in line or {"nan", "headscales", "ranges"} & set(line["workload"].split("+")):
                    continue
                # The program names a workload in another type by it; peers are told the type beside.
                w = workloads.parse(line["workload"].replace("+" + line["type"], ""))
                if w.name not in flops:
                    flops[w.name] = w.flops()
                assert flops[w.name] == line["flops"], w.name
                assert w.kv_bytes(line["type"]) == line["kv_bytes"], w.name
    assert flops


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("1,1,3,8", 9),
        ("2,4/2,3x5,8", 2 * 4 * 15),
        ("1,1,3x5,8,causal", 3 + 4 + 5),
        ("1,1,4,8+trimask", 1 + 2 + 3 + 4),
        ("1,1,4,8+window=2", 1 + 2 + 2 + 2),
        ("1,1,2x6,8+padmask", 2 * 3),
        ("1,1,300,8+bandmask", sum(min(i + 1, 256) for i in range(300))),
    ],
)
def test_pairs(text, pairs):
    w = workloads.parse(text)
    assert w.pairs() == pairs
    assert w.flops() == 2 * pairs * (w.dk + w.dv)


def test_random_mask_removes_about_a_tenth():
    w = workloads.parse("1,1,200,8+mask")
    assert 0.88 < w.pairs() / 200**2 < 0.92


@pytest.mark.parametrize("text", ["P9", "1,8,64", "1,8/3,64,8", "1,8,64x1x2,8", "P2+what", "P2+softcap+softcap", "1,1,8,4,8+mla", "P2+mask+padmask", "1,0,8,8"])
def test_what_is_no_workload(text):
    with pytest.raises(ValueError):
        workloads.parse(text)


def test_lists():
    assert [w.name for w in workloads.parse_list("P1,D1;1,8,64,32+alibi")] == ["P1", "D1", "1,8,64,32+alibi"]
    assert [w.name for w in workloads.parse_list("decode")] == ["D1", "D2", "D3"]


def test_visibility_is_that_of_its_rows():
    w = workloads.parse("2,2,3x7,8,causal+window=4")
    visible = tensors.Tensors(w, "f32").visibility(causal_too=True)
    assert visible.shape == (1, 1, 3, 7)
    assert visible.sum() * w.B * w.Hq == w.pairs()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_decode_rotates_over_enough_copies_and_prefill_over_none(dtype):
    w = workloads.parse("1,4/2,1x256,64")
    t = tensors.Tensors(w, dtype, rotate_bytes=1e6)
    assert sum(k.nbytes + v.nbytes for k, v in t.caches) >= 1e6
    assert len({k.ctypes.data for k, _ in t.caches}) == len(t.caches)
    assert len(tensors.Tensors(workloads.parse("1,1,8,8"), dtype, rotate_bytes=1e6).caches) == 1


def test_values_in_keys_are_the_first_channels():
    k, v = tensors.Tensors(workloads.parse("1,2/1,4,8,6+mla"), "f32").caches[0]
    np.testing.assert_array_equal(v, k[..., :6])
