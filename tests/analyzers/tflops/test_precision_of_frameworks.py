"""The same GPT on two H200 in every framework: what the hooks saw, what the traces show, and what was counted."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import kept_run
from perfscope.analyzers.tflops.precision import read_signs
from perfscope.sources.runs.run import read_run
from tests.analyzers.tflops.making import answer
from tests.conftest import ROOT

RUNS = ROOT / "fixtures" / "precision"
BF16, FP32, TF32 = 989.4, 66.9, 494.7

#: What the parameters are stored in, and what they are multiplied in.
FRAMEWORKS = {
    "fsdp2": ("fp32", "bf16"),
    "zero3": ("bf16", "bf16"),
    "trainer": ("fp32", "bf16"),
    "lightning": ("fp32", "bf16"),
    "fp32": ("fp32", "fp32"),
    "tf32": ("fp32", "tf32"),
}


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    return {name: answer("analyze", kept_run(RUNS / name), "--only", "mfu")["results"] for name in FRAMEWORKS}


@pytest.mark.parametrize(("name", "types"), FRAMEWORKS.items())
def test_the_precision_is_that_of_the_products(name: str, types: tuple[str, str], runs: dict[str, Any]) -> None:
    stored, multiplied = types
    found = runs[name]
    model = read_run(kept_run(RUNS / name)).models[0]
    assert (model.weights_dtype, read_signs(model)[0], found["mfu"]["dtype"]) == (stored, multiplied, multiplied)
    assert found["mfu"]["doubt"] is None
    assert 0.1 < found["mfu"]["mfu"] < 0.8


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_count_is_the_formula(name: str, runs: dict[str, Any]) -> None:
    counted = runs[name]["mfu"]["counted"]
    assert counted["difference"] == pytest.approx(0, abs=2e-3)
    assert counted["explanation"] == []


def test_the_peak_is_that_of_the_products(runs: dict[str, Any]) -> None:
    peaks = {name: found["mfu"]["peak_tflops"] for name, found in runs.items()}
    mixture = peaks.pop("tf32")
    assert peaks == {**dict.fromkeys(peaks, BF16), "fp32": FP32}
    # Its attention runs in a kernel for fp32.
    shares = runs["tf32"]["mfu"]["precision"]["shares"]
    assert sum(shares.values()) == pytest.approx(1)
    assert mixture == pytest.approx(1 / (shares["tf32"] / TF32 + shares["fp32"] / FP32))
    assert shares["fp32"] == pytest.approx(0.067, abs=0.02)


def test_with_the_peak_of_the_parameters_type_fsdp2_would_be_withheld() -> None:
    wrong = answer("analyze", kept_run(RUNS / "fsdp2"), "--only", "mfu", "--precision", "fp32")["results"]["mfu"]
    assert wrong["mfu"] is None
    assert "571.4 %" in wrong["doubt"]
