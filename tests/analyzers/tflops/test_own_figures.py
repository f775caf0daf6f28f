"""Why frameworks' own TFLOPs and MFU differ, by figures that were published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.log_excerpts import EXCERPTS
from tests.commands.report_cli import run
from tests.sources.joblog.lines import titan

NANOTRON = "layers=16,hidden=2048,heads=32,ffn=8192,vocab=131072,gated,tied"
LINE = (
    "[INFO|DP=0|PP=0|TP=0]: iteration: {step} / 10 | consumed_tokens: 9.44M | time_per_iteration_ms: {ms} | "
    "tokens_per_sec: {rate} | tokens_per_sec_per_gpu: {single} | global_batch_size: 1.05M | lm_loss: 7 | "
    "model_tflops_per_gpu: {tflops} | hardware_tflops_per_gpu: {tflops}\n"
)


def own(capsys: pytest.CaptureFixture[str], log: Path, *options: object) -> dict[str, Any]:
    found: dict[str, Any] = run(capsys, "tflops", "--log", log, "--format", "json", *options).data["log"]
    return found


@pytest.mark.parametrize(
    ("row", "convention"),
    [  # MFU 39.2 % at 40,150 tokens/s and 44.3 % at 38,895, of 989.5 TFLOP/s, on eight GPUs
        ({"ms": "3.26K", "rate": "321K", "single": "40.2K", "tflops": 388}, "megatron_before_2025"),
        ({"ms": "3.37K", "rate": "311K", "single": "38.9K", "tflops": 438}, "tied_embedding_twice"),
    ],
)
def test_a_tied_embedding_that_counts_on_two_stages(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, row: dict[str, Any], convention: str
) -> None:
    """The ultra-scale playbook's 1B model without a pipeline and with one of two stages."""
    log = tmp_path / "run.log"
    log.write_text("".join(LINE.format(step=step, **row) for step in range(1, 9)))
    found = own(capsys, log, "--model", NANOTRON, "--gbs", 256, "--gpus", 8, "--seq-len", 4096)
    assert (found["convention"], found["steps_with_tflops"]) == (convention, 8)
    assert "first and on the last pipeline stage" in " ".join(found["why"]) or convention != "tied_embedding_twice"


@pytest.mark.parametrize(
    ("cells", "convention"),
    [  # Llama 3 8B on eight GPUs, as two guides of others print them: 57.9 and 51.5 GFLOP/token
        ("train_step_timing in s: 6.08 | TFLOPS_per_GPU: 1.249e+03", "megatron_before_2025"),
        ("train_step_timing in s: 3.684 | TFLOPS_per_GPU: 1.831e+03", "megatron_core"),
    ],
)
def test_nemo_counts_the_whole_attention_or_half(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cells: str, convention: str
) -> None:
    head = "Training epoch 0, iteration {0}/99 | lr: 6.9e-06 | global_batch_size: 128 | global_step: {0} | "
    log = tmp_path / "run.log"
    text = f"{head}max_memory_reserved: 127785762816 | reduced_train_loss: 11.96 | {cells} | consumed_samples: 5888\n"
    log.write_text("".join(text.format(step) for step in range(1, 9)))
    found = own(capsys, log, "--model", "llama3-8b", "--gpus", 8, "--seq-len", 8192)
    assert (found["convention"], found["label"]) == (convention, "TFLOPS_per_GPU")
    assert bool(found["why"]) is (convention != "megatron_core")


def test_nanogpts_mfu_is_of_an_a100(capsys: pytest.CaptureFixture[str]) -> None:
    """A log of nanoGPT issue 110: 0.96 % of 312 TFLOP/s are 0.30 % of an H100."""
    options = ("--model", "gpt2-small", "--gpus", 1, "--gbs", 8)
    log = EXCERPTS / "nanogpt-2024.log"
    reason, share = own(capsys, log, *options, "--gpu", "h100")["why"]
    assert "A100" in reason
    assert "0.303 % of the 989.4" in share
    assert len(own(capsys, log, *options, "--gpu", "a100")["why"]) == 1


def test_torchtitans_peak_is_that_of_the_gpu_or_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """336.63 TFLOP/s and 34.04 % are of an H100's 989; the same figures say what they are of on an H20."""
    log = tmp_path / "run.log"
    log.write_text("".join(titan(step, f"22:31:{step:02d},970") for step in range(1, 9)))
    options = ("--model", "llama3-8b", "--gpus", 8, "--seq-len", 8192)
    assert not [why for why in own(capsys, log, *options, "--gpu", "h100")["why"] if "MFU" in why]
    assert any("of about 989 TFLOP/s" in why for why in own(capsys, log, *options, "--gpu", "b200")["why"])


def test_an_mfu_below_zero_is_of_a_gpu_that_llm_c_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    log = EXCERPTS / "llm-c.log"
    [why] = own(capsys, log, "--model", "gpt2-small", "--gpus", 1, "--gbs", 8, "--gpu", "b200")["why"]
    assert "does not list the GPU" in why
