"""``perfscope plan``: days from TFLOPs and back, memory by ZeRO stage, what fits, and the checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analyzers.tflops.making import answer, ask, refused

PLAN = ("plan", "--model", "13B", "--tokens", "260B", "--gpus", 16, "--gpu", "a100-40", "--tflops", 45)
GIGA = 1e9


def rows(document: dict[str, Any], **wanted: object) -> list[dict[str, Any]]:
    return [row for row in document["memory"] if all(row[key] == value for key, value in wanted.items())]


def test_the_days_follow_from_the_tflops() -> None:
    document = answer(*PLAN)
    seconds = 8 * 13e9 * 260e9 / (16 * 45e12)
    assert document["schema"] == "perfscope/plan/1"
    assert document["seconds"] == pytest.approx(seconds)
    assert document["days"] == pytest.approx(434.67, abs=0.01)
    assert document["hours"] == pytest.approx(seconds / 3600)
    assert document["gpu_hours"] == pytest.approx(16 * seconds / 3600)
    assert document["hfu"] == pytest.approx(45 / 312)
    assert document["mfu"] is None
    assert "434.7 days" in ask(*PLAN).stdout


@pytest.mark.parametrize(
    ("words", "tflops"),
    [
        (("--model", "125M", "--tokens", "2.5B", "--gpus", 1, "--days", 8 / 24, "--checkpointing", "none"), 65),
        (("--model", "1.3B", "--tokens", "26B", "--gpus", 4, "--days", 8, "--checkpointing", "full"), 98),
        (("--model", "1.3B", "--tokens", "26B", "--gpus", 4, "--days", 8), 98),
    ],
)
def test_the_seeds_table_is_solved_for_its_tflops(words: tuple[str | int, ...], tflops: int) -> None:
    document = answer("plan", *words, "--gpu", "a100-40")
    assert round(document["tflops_per_gpu"]) == tflops
    assert document["solved_for"] == "tflops"


def test_zero_shards_as_its_paper_says() -> None:
    """Rajbhandari et al. 2020, figure 1: 7.5B parameters on 64 GPUs take 120, 31.4, 16.6 and 1.9 GB."""
    document = answer("plan", "--size", "7.5B", "--gpus", 64)
    for zero, gigabytes in enumerate((120, 31.4, 16.6, 1.9)):
        (row,) = rows(document, zero=zero, checkpointing="none")
        states = row["weights_bytes"] + row["gradients_bytes"] + row["optimizer_bytes"]
        assert states / GIGA == pytest.approx(gigabytes, abs=0.06)
        buffers = row["gathered_bytes"] + row["buckets_bytes"] + row["exchanged_bytes"]
        assert row["total_bytes"] == states + row["activations_bytes"] + buffers
        assert (row["gathered_bytes"] > 0) == (zero == 3)
        assert (row["tp"], row["pp"], row["dp"]) == (1, 1, 64)


_REAL = ("plan", "--model", "layers=16,hidden=2048,heads=16,vocab=32000", "--seq-len", 1024, "--gpus", 2)


@pytest.mark.parametrize(
    ("words", "measured"),
    [
        (("--pp", 2, "--states", "megatron", "--attention", "eager", "--checkpointing", "none"), 18_755_652_608),
        (("--tp", 2, "--states", "megatron", "--attention", "eager", "--checkpointing", "selective"), 11_411_903_488),
        (("--zero", 1, "--checkpointing", "none"), 15_709_674_496),
        (("--zero", 2, "--checkpointing", "none"), 13_843_860_480),
    ],
    ids=["pipeline", "tensor", "ZeRO 1", "ZeRO 2"],
)
def test_what_real_runs_took_is_estimated(words: tuple[str | int, ...], measured: int) -> None:
    """Peaks of PyTorch's allocator on two H200: Megatron-core 0.16 without fused kernels, and DeepSpeed 0.19.8."""
    document = answer(*_REAL, "--zero", 0, *words, "--micro-batch", 4)
    assert document["memory"][0]["total_bytes"] == pytest.approx(measured, rel=0.04)


def test_a_hybrid_that_ran_out_of_memory_is_said_to() -> None:
    """NVIDIA: 72.9 GiB were allocated when it failed on 16 H100; with the experts recomputed it ran in 64.7 GB.

    Source: skills/nemo-mbridge-perf-activation-recompute/SKILL.md in NVIDIA-NeMo/Megatron-Bridge 067f987.
    """
    words = ("plan", "--model", "nemotron-3-nano", "--gpus", 16, "--gpu", "h100-sxm", "--seq-len", 8192, "--ep", 8)
    none, full = answer(*words, "--zero", 1, "--loss", "compiled")["memory"]
    assert none["total_bytes"] == pytest.approx(72.9 * 2**30, rel=0.04)
    assert none["fit_probability"] < 0.5
    assert full["fit_probability"] > 0.9
    assert "how long Mamba-2 takes" in refused(*words, "--gbs", 1024)


def test_context_parallelism_shares_sequences_and_shards_states() -> None:
    words = ("plan", "--model", "llama3-70b", "--gpus", 64, "--seq-len", 131072, "--tp", 8, "--zero", 1)
    whole, shared = (answer(*words, "--checkpointing", "full", *more)["memory"][0] for more in ((), ("--cp", 4)))
    assert shared["activations_bytes"] == pytest.approx(whole["activations_bytes"] / 4)
    assert shared["optimizer_bytes"] == whole["optimizer_bytes"]  # over 2 x 4 ranks as over 8
    assert (whole["dp"], shared["dp"], shared["cp"]) == (8, 2, 4)


def test_what_fits_is_below_the_memory_and_the_rest_is_not() -> None:
    document = answer(*PLAN)
    memory_bytes = document["gpu"]["memory_bytes"]
    assert memory_bytes == 40_000_000_000
    for row in (*document["memory"], *document["fits"]):
        assert row["fits"] == (row["reserved_bytes"] <= memory_bytes) == (row["fit_probability"] >= 0.5)
    assert document["fits"]
    assert all(row["fits"] for row in document["fits"])
    assert all(row["tp"] * row["pp"] * row["dp"] == 16 for row in document["fits"])
    assert [round(100 * row["fit_probability"]) for row in rows(document, checkpointing="full")] == [0, 0, 31, 100]


@pytest.mark.parametrize(
    ("words", "whole", "weights"),
    [
        (("--size", "13B"), 182e9, 26e9),
        (("--size", "181994419200"), 2.548e12, 363.99e9),
        (("--size", "812445696"), 14 * 812_445_696, 1_624_919_321),
        (("--size", "1B", "--dtype", "fp32"), 12e9, 4e9),
        (("--size", "1B", "--optimizer", "sgd"), 10e9, 2e9),
        (("--size", "1B", "--optimizer", "adam8bit"), 8e9, 2e9),
    ],
)
def test_a_checkpoint_has_weights_and_optimizer(words: tuple[str, ...], whole: float, weights: float) -> None:
    """The last figure of the third case is the file that DeepSpeed wrote for that model."""
    document = answer("plan", *words, "--gpus", 4)
    assert document["checkpoint"]["total_bytes"] == document["checkpoint_bytes"] == pytest.approx(whole, rel=1e-3)
    assert document["checkpoint"]["weights_bytes"] == pytest.approx(weights, rel=1e-4)


def test_expert_parallelism_spreads_the_experts_alone() -> None:
    words = ("plan", "--model", "mixtral-8x7b", "--gpus", 8, "--zero", 0, "--checkpointing", "full")
    whole, spread = (answer(*words, "--ep", ep)["memory"][0]["weights_bytes"] for ep in (1, 8))
    experts = 32 * 8 * 3 * 4096 * 14336
    assert whole - spread == pytest.approx(2 * experts * 7 / 8, rel=1e-6)
    split, across = (answer(*words, "--tp", 4, "--ep", ep)["memory"][0]["weights_bytes"] for ep in (1, 8))
    assert split - across == pytest.approx(
        2 * experts * (1 / 4 - 1 / 8), rel=1e-6
    )  # whole experts on tensor ranks, too


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "13B"), "--gpus is missing"),
        (("--model", "13B", "--gpus", 0), "--gpus must be at least 1"),
        (("--model", "13B", "--gpus", 4, "--tokens", "many"), "not a number of tokens"),
        (("--model", "13B", "--gpus", 4, "--tokens", "1B", "--days", -1), "--days must be positive"),
        (("--model", "13B", "--gpus", 4, "--tokens", "1B", "--days", 1, "--tflops", 40), "determine each other"),
        (("--model", "13B", "--gpus", 4, "--convention", "palm", "--tokens", "1B"), "needs the dimensions"),
        (("--model", "llama3-8b", "--gpus", 3, "--tp", 3), "32 heads do not divide into 3"),
        (("--model", "llama3-8b", "--gpus", 64, "--pp", 64), "32 layers do not fill 64"),
        (("--model", "13B", "--gpus", 4, "--zero", 4), "stage of ZeRO"),
        (("--model", "13B", "--gpus", 6, "--cp", 4), "groups of 1 x 1 x 4"),
        (("--model", "13B", "--gpus", 3, "--cp", 3), "1024 tokens does not divide over 3"),
        (("--model", "13B", "--gpus", 8, "--pp", 4, "--virtual-stages", 3), "4 x 3 virtual stages"),
        (("--model", "13B", "--gpus", 8, "--virtual-stages", 2), "--virtual-stages 2 is given without a pipeline"),
        (("--model", "13B", "--gpus", 8, "--gbs", 12, "--micro-batch", 2), "micro-batches of 2 on 8"),
        (("--model", "13B", "--gpus", 4, "--ep", 2), "without experts"),
        (("--model", "mixtral-8x7b", "--gpus", 4, "--ep", 3), "do not divide"),
    ],
)
def test_a_plan_that_cannot_be_is_one_clear_line(words: tuple[object, ...], said: str) -> None:
    line = refused("plan", *(str(word) for word in words))
    assert said in line
    assert line.count("\n") <= 2


def test_a_speed_above_the_peak_is_warned_of() -> None:
    document = answer("plan", "--model", "13B", "--tokens", "260B", "--gpus", 1, "--gpu", "a100-40", "--days", 1)
    assert any("above the dense bf16 peak" in line for line in document["warnings"])


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (("--model", "llama3-8b", "--gpus", 8, "--gpu", "h200-sxm"), "Fits (probability 99%) with ZeRO 1, "),
        (
            ("--model", "llama3-8b", "--gpus", 8, "--gpu", "h100-sxm", "--seq-len", 12288, "--zero", 1),
            "Tight (probability 70%) with ZeRO 1, ",
        ),
        (("--model", "llama3-70b", "--gpus", 8, "--gpu", "h100-sxm"), "Does not fit: at least "),
        (
            ("--model", "llama3-8b", "--gpus", 8, "--gpu", "h200-sxm", "--zero", 0, "--seq-len", 65536),
            "Does not fit as typed, at least ",
        ),
        (("--model", "llama3-8b", "--gpus", 8), "Does it fit? Give --gpu"),
    ],
)
def test_the_first_line_answers_whether_it_fits(words: tuple[str | int, ...], verdict: str) -> None:
    document, title = answer("plan", *words), ask("plan", *words).stdout.splitlines()[0]
    assert title.startswith(f"# {verdict}")
    assert document["verdict"].startswith(verdict)
    fits = {row["fits"] for row in document["memory"]}
    assert verdict.startswith(("Fits", "Tight")) == (True in fits)
    if document["fits"] is not None:
        assert bool(document["fits"]) == (not verdict.startswith("Does not fit:"))


def test_a_named_model_takes_the_sequences_of_its_pre_training_and_says_so() -> None:
    document = answer("plan", "--model", "llama3-8b", "--gpus", 8)
    assert document["assumptions"]["seq_len"] == 8192
    assert "sequence length 8192, that of the model's pre-training (--seq-len)" in document["assumed"]
    assert "sequences of 8192 tokens" in ask("plan", "--model", "llama3-8b", "--gpus", 8).stdout.splitlines()[0]
    assert answer("plan", "--model", "llama3-8b", "--gpus", 8, "--seq-len", 512)["assumptions"]["seq_len"] == 512
    unknown = answer("plan", "--model", "llama3.2-1b", "--gpus", 8)
    assert "sequence length 1024 (--seq-len)" in unknown["assumed"]
