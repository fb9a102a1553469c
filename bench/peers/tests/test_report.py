"""Medians, ratios and what the text says of wins and losses."""

import machine
import pytest
import report


def rounds(peer, times, workload="P1", group="main"):
    base = {"peer": peer, "threads": 1, "group": group, "workload": workload, "dtype": "f32"}
    yield {"kind": "case", **base, "computed": "f32", "accumulates": "f32", "amx_permitted": False, "peak_bytes": 1 << 20, "Tk": 512}
    for number, seconds in enumerate(times):
        yield {"kind": "round", **base, "round": number, "median_s": seconds, "noisy": False}


def records():
    yield {"kind": "machine", "cpu": "Some CPU", "cores": 2, "date": "2026-01-01T00:00:00Z"}
    yield {"kind": "peer", "peer": "torch-flash", "threads": 1, "versions": {"torch": "1.2"}, "settings": {}}
    yield from rounds("fovea", [1.0, 2.0, 1.0])
    yield from rounds("torch-flash", [2.0, 4.0, 3.0])
    yield from rounds("openvino", [0.5, 1.0, 0.5])
    yield from rounds("fovea", [1.0, 1.0], "P2")
    yield from rounds("torch-flash", [8.0, 8.0], "P2")
    yield from rounds("torch-flash", [9.0], "1,1,1024,64", "long")
    yield {"kind": "skip", "peer": "ggml", "threads": 1, "reason": "is not | installed"}


def test_quartiles():
    assert report.quartiles([3, 1, 2]) == (1.5, 2, 2.5)
    assert report.quartiles([7]) == (7, 7, 7)
    assert report.quartiles([1, 2, 3, 4]) == (1.75, 2.5, 3.25)


def test_geometric_mean():
    assert report.geometric_mean([2, 8]) == pytest.approx(4)


def test_ratios_are_of_the_same_round():
    results = report.Results(list(records()))
    assert results.ratio("f32", 1, "P1", "torch-flash") == (2, 2, 2.5)
    assert results.ratio("f32", 1, "P2", "openvino") is None


def test_the_fastest_other_library_counts():
    results = report.Results(list(records()))
    assert results.fastest("f32", 1, "P1") == "openvino"
    assert results.against_fastest("f32", 1, ["P1", "P2"]) == {"P1": 0.5, "P2": 8}


def test_losses_are_said():
    text = report.markdown(list(records()))
    assert "| P1 | 1000 | openvino | 500 | 0.50 (0.50–0.50) slower |" in text
    assert "P1 … P6: geometric mean 2.00 over the fastest other library of each; slower at P1" in text


def test_what_was_left_out_is_listed():
    assert "| ggml | is not \\| installed | everywhere |" in report.markdown(list(records()))


def test_files_have_the_names_of_other_records():
    assert machine.file_name("Intel(R) Xeon(R) Processor (family 6, model 207)") == "intel-r-xeon-r-processor-family-6-model-207"
