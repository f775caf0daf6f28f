"""Models by typed dimensions and sizes: the same as by name, and what is refused."""

from __future__ import annotations

import pytest

from perfscope.models.parameter_counts import bigscience_parameters
from tests.analyzers.flops.making import answer, refused

STEP = ("--gbs", 1, "--time", 1)


def test_dimensions_make_the_model_that_the_seed_counts() -> None:
    words = ("--layers", 36, "--hidden", 4096, "--heads", 32, "--vocab", 50257, "--seq-len", 512)
    document = answer("tflops", *words, *STEP)
    assert document["model"]["parameters"] == document["model"]["seed_formula_parameters"]
    assert document["model"]["parameters"] == bigscience_parameters(36, 4096, 50257, 512)


def test_llama_by_its_dimensions_is_llama_by_name() -> None:
    words = ("--layers", 32, "--hidden", 4096, "--heads", 32, "--kv-heads", 8, "--ffn", 14336, "--vocab", 128256)
    typed = answer("tflops", *words, "--gated", *STEP)
    named = answer("tflops", "--model", "llama3-8b", *STEP)
    assert typed["conventions"] == named["conventions"]
    assert typed["model"]["parameters"] == named["model"]["parameters"]


def test_mixtral_by_its_dimensions_is_mixtral_by_name() -> None:
    words = ("--layers", 32, "--hidden", 4096, "--heads", 32, "--kv-heads", 8, "--ffn", 14336, "--vocab", 32000)
    typed = answer("tflops", *words, "--swiglu", "--experts", 8, "--top-k", 2, *STEP)
    named = answer("tflops", "--model", "mixtral-8x7b", *STEP)
    assert typed["model"]["active_parameters"] == named["model"]["active_parameters"] == 12_879_925_248
    assert typed["conventions"] == named["conventions"]


def test_multi_token_prediction_is_left_out_until_asked_for() -> None:
    plain = answer("tflops", "--model", "deepseek-v3", *STEP)
    with_module = answer("tflops", "--model", "deepseek-v3", "--mtp-layers", 1, *STEP)
    assert plain["model"]["parameters"] == 671_026_404_352
    assert any("--mtp-layers 1" in line for line in plain["assumed"])
    added = with_module["model"]["parameters"] - plain["model"]["parameters"]
    assert added == pytest.approx(11.6e9, rel=0.01)  # the published 14B hold the shared embedding and output layer too


_GPT_WORDS = ("--layers", 12, "--hidden", 768, "--vocab", 50257)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "which model?"),
        (("--model", "gpt5-turbo"), "neither a known name"),
        (("--size", "52Q"), "52Q"),
        (("--size", "52B", "--model", "llama3-8b"), "contradicts llama3-8b"),
        (("--size", "52B", "--model", "13B"), "contradicts --model 13B"),
        (("--size", "52B", *_GPT_WORDS), "contradicts the model"),
        (("--model", "llama3-8b", "--layers", 16), "--layers 16 contradicts llama3-8b, which has 32"),
        (("--model", "llama3-8b", "--kv-heads", 32), "--kv-heads 32"),
        (("--model", "llama3-8b", "--tied"), "--tied True"),
        (("--layers", 12, "--hidden", 768), "--vocab"),
        ((*_GPT_WORDS, "--heads", 7), "does not divide into 7 heads"),
        ((*_GPT_WORDS, "--heads", 12, "--kv-heads", 5), "do not divide into 5"),
        ((*_GPT_WORDS, "--kv-heads", 4), "--heads is missing"),
        ((*_GPT_WORDS, "--heads", 0), "--heads must be at least 1"),
        ((*_GPT_WORDS, "--layers", -1), "--layers must be at least 1"),
        ((*_GPT_WORDS, "--experts", 8), "--top-k is missing"),
        ((*_GPT_WORDS, "--experts", 8, "--top-k", 9), "9 of 8 experts"),
        ((*_GPT_WORDS, "--top-k", 2), "without --experts"),
        ((*_GPT_WORDS, "--experts", 8, "--top-k", 2, "--dense-layers", 12), "0 of 12 layers"),
        ((*_GPT_WORDS, "--padded-vocab", 50000), "padded vocabulary of 50000"),
    ],
)
def test_contradictions_and_gaps_are_refused_in_one_line(words: tuple[object, ...], said: str) -> None:
    line = refused("tflops", *(str(word) for word in words), *STEP)
    assert said in line
    assert line.count("\n") <= 2


@pytest.mark.parametrize("size", ["8B", "8.03B", "8e9"])
def test_a_size_that_is_rounded_does_not_contradict_its_model(size: str) -> None:
    assert answer("tflops", "--size", size, "--model", "llama3-8b", *STEP)["model"]["parameters"] == 8_030_261_248


def test_a_size_in_the_wrong_unit_is_explained() -> None:
    """The seed's own mistake: 61 times 2**30 parameters are 65 times 10**9."""
    line = refused("tflops", "--size", "61B", "--layers", 80, "--hidden", 8192, "--vocab", 50257, *STEP)
    assert "contradicts" in line
    assert "2**30" in line
