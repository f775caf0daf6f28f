"""One input, one answer: a figure that several commands give for the same file is the same in all of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands.report_cli import run
from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures"
LOGS = sorted((*FIXTURES.glob("logs/*.log"), *FIXTURES.glob("flops/*.log")))
RUNS = sorted(path.parent for path in FIXTURES.glob("runs/*/run.json"))
#: Dimensions for logs that state none; both commands take them.
MODEL = ("--size", "1B", "--gpus", "4", "--seq-len", "2048", "--checkpointing", "full")

Answer = Callable[..., Any]


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Answer:
    """The JSON of a command."""

    def call(*words: object) -> Any:
        ended = run(capsys, *words, "--format", "json")
        assert ended.code in (0, 4), ended.err
        return ended.data

    return call


def name_of(path: Path) -> str:
    return path.relative_to(FIXTURES).as_posix()


@pytest.mark.parametrize("log", LOGS, ids=name_of)
@pytest.mark.parametrize("wrapping", ["plain", "gzip", "UTF-16", "labels"])
def test_logs_and_tflops_read_a_log_alike_in_every_wrapping(
    tmp_path: Path, answer: Answer, log: Path, wrapping: str
) -> None:
    text = log.read_text()
    wrapped = tmp_path / (f"{log.name}.gz" if wrapping == "gzip" else log.name)
    if wrapping == "labels":
        text = "".join(f"[rank0]:{line}" for line in text.splitlines(keepends=True))
    content = text.encode("utf-16" if wrapping == "UTF-16" else "utf-8")
    wrapped.write_bytes(gzip.compress(content) if wrapping == "gzip" else content)
    (summary,) = answer("logs", wrapped, *MODEL)["logs"]
    (plain,) = answer("logs", log, *MODEL)["logs"]
    assert {**summary, "path": None} == {**plain, "path": None}
    batch = () if summary["gbs"] else ("--gbs", 32)
    document = answer("tflops", "--log", wrapped, *MODEL, *batch)
    assert document["inputs"]["time_s"] == pytest.approx(summary["median_s"], abs=1e-9)
    assert document["log"]["framework"] == summary["framework"]
    if summary["gbs"]:
        assert document["inputs"]["gbs"] == summary["gbs"]
        assert document["tflops_per_gpu"] == pytest.approx(summary["tflops_per_gpu"], rel=1e-8)


def test_a_size_that_a_log_states_is_the_model_of_both(tmp_path: Path, answer: Answer) -> None:
    log = tmp_path / "job.log"
    lines = (FIXTURES / "flops" / "megatron_core_tp2_pp2_h200.iterations.log").read_text()
    log.write_text("> number of parameters on (tensor, pipeline) model parallel rank (0, 0): 870000000\n" + lines)
    words = ("--gpus", 4, "--seq-len", 2048, "--checkpointing", "full")
    (summary,) = answer("logs", log, *words)["logs"]
    document = answer("tflops", "--log", log, *words)
    assert document["inputs"]["parameters"] == summary["parameters"] == 870_000_000
    assert document["tflops_per_gpu"] == pytest.approx(summary["tflops_per_gpu"], rel=1e-8)


def about(value: float | None) -> Any:
    """The value but for rounding; None where too few steps give none."""
    return None if value is None else pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("folder", RUNS, ids=name_of)
def test_every_command_that_reads_a_run_gives_its_step_time_and_throughput(answer: Answer, folder: Path) -> None:
    steps = answer("analyze", folder, "--only", "steps")["results"]["steps"]
    (scaled,) = answer("scaling", folder)["runs"]
    assert scaled["samples_per_s"] == about(steps["samples_per_s"])
    plan = answer("plan", "--run", folder, "--model", "gpt2-small")
    measured = {quantity["name"]: quantity["measured"] for quantity in plan["run"]["quantities"]}
    assert measured["step_s"] == about(steps["step_time_s"])
    assert plan["gpus"] == len(steps["ranks"])


def test_plan_and_checkpoint_expect_the_same_size(answer: Answer) -> None:
    plan = answer("plan", "--model", "7B", "--gpus", 8, "--zero", 1)
    expected = answer("checkpoint", "--size", "7B", "--gpus", 8)
    assert json.dumps(expected).count(str(plan["checkpoint_bytes"])) > 0
