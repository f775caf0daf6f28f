"""A plan that takes its values from a run: real runs on four H200, and runs whose figures a reader can multiply out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope import wire
from tests.analyzers.test_mfu import run_folder
from tests.analyzers.tflops.making import answer, ask, refused
from tests.conftest import ROOT

H200_ZERO1 = ROOT / "fixtures" / "runs" / "h200_zero1"
H200_ZERO3 = ROOT / "fixtures" / "runs" / "h200_zero3"
PARAMETERS = 709_425_152


@pytest.mark.parametrize(
    ("run", "zero", "measured"), [(H200_ZERO1, 1, 17_497_718_272), (H200_ZERO3, 3, 16_786_665_472)]
)
def test_the_memory_of_real_runs_is_what_was_estimated(run: Path, zero: int, measured: int) -> None:
    """12 layers of 2048 on four H200 under DeepSpeed."""
    document = answer("plan", "--run", run, "--zero", zero)
    assert document["memory"][0]["total_bytes"] == pytest.approx(measured, rel=0.05)
    assert any(f"tensors took {measured / 1e9:.2f} GB on the fullest GPU" in line for line in document["read"])
    assert (document["gpus"], document["gpu"]["name"]) == (4, "h200-sxm")
    assert document["assumptions"]["checkpointing"] == "none"
    assert document["checkpoint_bytes"] == 14 * PARAMETERS
    assert any("micro-batch 8, global batch 64" in line for line in document["read"])


def test_typed_values_take_precedence_over_those_of_the_run() -> None:
    document = answer("plan", "--run", H200_ZERO1, "--zero", 2, "--micro-batch", 4, "--checkpointing", "full")
    assert {(row["zero"], row["micro_batch"], row["checkpointing"]) for row in document["memory"]} == {(2, 4, "full")}
    assert document["assumptions"]["seq_len"] == 1025


def test_a_zero_stage_that_was_not_recorded_is_noted() -> None:
    assert "did not record its ZeRO stage" in ask("plan", "--run", H200_ZERO1).stdout


@pytest.mark.parametrize(
    ("weights", "computed", "optimizer", "bytes_a_parameter"),
    [
        ("bf16", None, None, (2, 2, 4)),
        ("bf16", None, "DistributedOptimizer", (2, 2, 12)),
        ("fp32", "bf16", None, (6, 4, 8)),
        ("bf16", None, "megatron", (2, 4, 12)),
        ("fp32", None, None, (4, 4, 8)),
    ],
)
def test_the_states_follow_from_the_types_and_the_optimizer(
    tmp_path: Path, weights: str, computed: str | None, optimizer: str | None, bytes_a_parameter: tuple[int, int, int]
) -> None:
    run = run_folder(tmp_path, "NVIDIA H200", dtype=weights, compute_dtype=computed, optimizer=optimizer)
    if optimizer == "megatron":  # what ends a step tells the framework
        for path in run.rglob(wire.STEPS_FILE):
            path.write_text(path.read_text().replace('"source":"optimizer"', '"source":"megatron"'))
    document = answer("plan", "--run", run, "--zero", 0)
    row = document["memory"][0]
    parameters = document["model"]["parameters"]
    found = (row["weights_bytes"], row["gradients_bytes"], row["optimizer_bytes"])
    assert found == tuple(each * parameters for each in bytes_a_parameter)


def test_a_run_that_cannot_be_planned_from_is_one_clear_line(tmp_path: Path) -> None:
    run = run_folder(tmp_path, "NVIDIA H200")
    for path in run.rglob(wire.MODEL_FILE):
        path.unlink()
    assert "does not record which model it trained" in refused("plan", "--run", run)
    assert answer("plan", "--run", run, "--model", "gpt2-small")["gpus"] == 2
    for path in run.rglob(wire.STEPS_FILE):
        path.unlink()
    assert "no training step was recorded" in refused("plan", "--run", run)
    ended = ask("plan", "--run", tmp_path)
    assert (ended.code, ended.stdout) == (1, "")
    assert "is not a run" in ended.stderr


def test_a_run_without_tokens_says_what_is_missing(tmp_path: Path) -> None:
    run = run_folder(tmp_path, None, dtype="fp32")
    for path in run.rglob(wire.STEPS_FILE):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "tokens"}) + "\n" for line in lines))
    assert any("tokens of a step are unknown" in line for line in answer("plan", "--run", run)["read"])
