"""A plan compared with a run: real runs on four H200, and runs whose figures a reader can multiply out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope import wire
from perfscope.wire.records import CheckpointRecord, to_line
from tests.analyzers.flops.making import answer, ask, refused
from tests.analyzers.test_mfu import run_folder
from tests.conftest import ROOT

H200_ZERO1 = ROOT / "fixtures" / "runs" / "h200_zero1"
H200_ZERO3 = ROOT / "fixtures" / "runs" / "h200_zero3"
PARAMETERS = 709_425_152


def quantities(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in document["run"]["quantities"]}


def test_the_memory_of_real_runs_is_what_was_estimated() -> None:
    """12 layers of 2048 on four H200 under DeepSpeed; ZeRO 3's gathered weights are in it, which a note says."""
    first = quantities(answer("plan", "--run", H200_ZERO1, "--zero", 1))["memory_bytes"]
    assert first["measured"] == 17_497_718_272
    assert abs(first["difference"]) < 0.02
    third = quantities(answer("plan", "--run", H200_ZERO3, "--zero", 3))["memory_bytes"]
    assert third["measured"] == 16_786_665_472
    assert abs(third["difference"]) < 0.05
    assert "2.4 GB of the estimate are weights and buckets that ZeRO 3 gathers" in third["note"]


def test_a_planned_speed_stands_beside_the_one_that_was_reached() -> None:
    document = answer("plan", "--run", H200_ZERO1, "--zero", 1, "--tflops", 430)
    found = quantities(document)
    reached = 8 * PARAMETERS * 64 * 1025 / found["step_s"]["measured"] / 4 / 1e12 * 6 / 8  # nothing is recomputed
    assert found["tflops_per_gpu"]["estimated"] == 430
    assert found["tflops_per_gpu"]["measured"] == pytest.approx(reached)
    assert found["step_s"]["estimated"] * 430 == pytest.approx(found["step_s"]["measured"] * reached)
    assert found["checkpoint_bytes"]["estimated"] == 14 * PARAMETERS
    assert found["checkpoint_bytes"]["measured"] is None
    assert found["gpu_memory_bytes"]["measured"] > found["memory_bytes"]["measured"]
    assert document["gpus"] == 4
    assert document["gpu"]["name"] == "h200-sxm"
    assert document["assumptions"]["checkpointing"] == "none"
    assert any("micro-batch 8, global batch 64" in line for line in document["read"])


def test_without_a_speed_the_peak_bounds_the_step() -> None:
    found = quantities(answer("plan", "--run", H200_ZERO1, "--zero", 1))["step_s"]
    assert found["estimated"] < found["measured"]
    assert "dense peak of 989.4" in found["note"]


def test_a_speed_that_is_solved_for_is_the_planned_one() -> None:
    words = ("plan", "--run", H200_ZERO1, "--zero", 1, "--tokens", "1B", "--days", 1 / 24)
    document = answer(*words)
    assert quantities(document)["tflops_per_gpu"]["estimated"] == document["tflops_per_gpu"]


def test_typed_values_take_precedence_over_those_of_the_run() -> None:
    document = answer("plan", "--run", H200_ZERO1, "--zero", 2, "--micro-batch", 4, "--checkpointing", "full")
    assert {(row["zero"], row["micro_batch"], row["checkpointing"]) for row in document["memory"]} == {(2, 4, "full")}
    assert document["assumptions"]["seq_len"] == 1025


def test_a_zero_stage_that_was_not_recorded_is_noted() -> None:
    assert "did not record its ZeRO stage" in ask("plan", "--run", H200_ZERO1).stdout


def test_the_checkpoint_is_what_all_ranks_wrote(tmp_path: Path) -> None:
    run = run_folder(tmp_path, "NVIDIA H200", zero_stage=2)
    for rank in range(2):
        folder = run / wire.RANKS_FOLDER / wire.rank_folder(rank)
        saves = [
            CheckpointRecord(start_ns=0, end_ns=1, source="deepspeed", step=step, size_bytes=size)
            for step, size in ((2, 1000 + rank), (4, 2000), (4, 500), (6, None))
        ]
        (folder / wire.CHECKPOINTS_FILE).write_bytes(b"".join(to_line(save) for save in saves))
    document = answer("plan", "--run", run)
    # After step 2 the ranks wrote 1000 and 1001 bytes, after step 4 2500 each; of step 6 the size is not told.
    assert quantities(document)["checkpoint_bytes"]["measured"] == round((2001 + 5000) / 2)
    assert {row["zero"] for row in document["memory"]} == {2}


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


def test_a_run_that_cannot_be_compared_with_a_plan_is_one_clear_line(tmp_path: Path) -> None:
    run = run_folder(tmp_path, "NVIDIA H200")
    for path in run.rglob(wire.MODEL_FILE):
        path.unlink()
    assert "does not record which model it trained" in refused("plan", "--run", run)
    # With a model that is typed, the rest is held against it.
    step = quantities(answer("plan", "--run", run, "--model", "gpt2-small"))["step_s"]
    assert step["measured"] == pytest.approx(0.7 / 6)  # six steady-state steps, one of them of 200 ms
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
    found = answer("plan", "--run", run)
    assert quantities(found)["tflops_per_gpu"]["measured"] is None
    assert quantities(found)["memory_bytes"]["measured"] is None
    assert any("tokens of a step" in note for note in found["run"]["notes"])
