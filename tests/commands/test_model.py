"""Models by typed dimensions and sizes: the same as by name, and what is refused."""

from __future__ import annotations

import pytest

from perfscope.models.parameter_counts import bigscience_parameters
from tests.analyzers.tflops.making import answer, refused

STEP = ("--gbs", 1, "--time", 1)


def test_dimensions_make_the_model_that_the_seed_counts() -> None:
    model = "layers=36,hidden=4096,heads=32,vocab=50257"
    document = answer("tflops", "--model", model, "--seq-len", 512, *STEP)
    assert document["model"]["parameters"] == document["model"]["seed_formula_parameters"]
    assert document["model"]["parameters"] == bigscience_parameters(36, 4096, 50257, 512)


@pytest.mark.parametrize(
    ("name", "more"),
    [("llama3-8b", "vocab=128256,gated"), ("mixtral-8x7b", "vocab=32000,gated,experts=8,top-k=2")],
)
def test_a_model_by_its_dimensions_is_the_model_by_its_name(name: str, more: str) -> None:
    typed = answer("tflops", "--model", f"layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,{more}", *STEP)
    named = answer("tflops", "--model", name, "--seq-len", 1024, *STEP)
    assert typed["conventions"] == named["conventions"]
    assert typed["model"]["active_parameters"] == named["model"]["active_parameters"]


def test_multi_token_prediction_is_left_out_until_asked_for() -> None:
    plain = answer("tflops", "--model", "deepseek-v3", *STEP)
    with_module = answer("tflops", "--model", "deepseek-v3,mtp_layers=1", *STEP)
    assert plain["model"]["parameters"] == 671_026_404_352
    assert any("mtp_layers=1" in line for line in plain["assumed"])
    added = with_module["model"]["parameters"] - plain["model"]["parameters"]
    assert added == pytest.approx(11.6e9, rel=0.01)  # the published 14B hold the shared embedding and output layer too


_GPT = "layers=12,hidden=768,heads=12,vocab=50257"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "which model?"),
        (("--model", "gpt5-turbo"), "neither a known name"),
        (("--size", "52Q"), "52Q"),
        (("--size", "52B", "--model", "llama3-8b"), "contradicts llama3-8b"),
        (("--size", "52B", "--model", "13B"), "contradicts --model 13B"),
        (("--size", "52B", "--model", _GPT), "contradicts the model"),
    ],
)
def test_a_model_that_is_no_model_is_refused_in_one_line(words: tuple[str, ...], said: str) -> None:
    line = refused("tflops", *words, *STEP)
    assert said in line
    assert line.count("\n") <= 2


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("llama3-8b,layers=16", "layers of llama3-8b is its own"),
        ("layers=12,hidden=768", "heads and vocab missing"),
        (f"{_GPT},width=3", "'width=3' is no dimension"),
        ("layers=12,hidden=768,heads", "heads must be at least 1 and below 10**12, not nothing"),
        (f"layers={'9' * 99},hidden=768", "below 10**12"),
        ('{"model_type":"llama"}' * 99, "longer than the name of a file"),
        (f"{_GPT},gated=1", "'gated=1' is no dimension"),
        ("layers=12,hidden=768,heads=7,vocab=50257", "does not divide into 7 heads"),
        (f"{_GPT},kv_heads=5", "do not divide into 5"),
        (f"{_GPT},layers=-1", "layers must be at least 1"),
        (f"{_GPT},experts=8", "top_k is missing"),
        (f"{_GPT},experts=8,top_k=9", "9 of 8 experts"),
        (f"{_GPT},top_k=2", "without experts"),
        (f"{_GPT},experts=8,top_k=2,dense_layers=12", "0 of 12 layers"),
        (f"{_GPT},padded_vocab=50000", "padded vocabulary of 50000"),
    ],
)
def test_dimensions_that_make_no_model_are_refused_in_one_line(model: str, said: str) -> None:
    line = refused("tflops", "--model", model, *STEP)
    assert said in line
    assert line.count("\n") <= 2


@pytest.mark.parametrize("size", ["8B", "8.03B", "8e9"])
def test_a_size_that_is_rounded_does_not_contradict_its_model(size: str) -> None:
    assert answer("tflops", "--size", size, "--model", "llama3-8b", *STEP)["model"]["parameters"] == 8_030_261_248
