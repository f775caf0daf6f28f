"""Lines of two jobs in one log give no figure of either; restarts of one job stay one job."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.logs.summary import summarize_log
from perfscope.result import to_object
from perfscope.sources.joblog.records import Record, RecordSeries
from tests.commands.report_cli import run
from tests.sources.joblog.lines import megatron, read

IN_TURNS = {
    "ends that differ": [megatron(n, 1000.0) + megatron(4000 + n, 3000.0, total=5000) for n in range(1, 6)],
    "the same iterations at another speed": [megatron(n, 1000.0) + megatron(n, 3000.0) for n in range(1, 30)],
    "the same iterations of other batches": [
        megatron(n, 1000.0) + megatron(n, 1000.0, batch=512) for n in range(1, 30)
    ],
    "other iterations": [megatron(n, 1000.0) + megatron(400 + n, 3000.0) for n in range(1, 30)],
}
BEHIND = {
    "another end": [
        *(megatron(n, 1000.0) for n in range(1, 6)),
        *(megatron(n, 2000.0, total=50) for n in range(1, 6)),
    ],
    "another model": [
        "  hidden_size ..... 1024\n",
        *(megatron(n, 1000.0) for n in range(1, 6)),
        "  hidden_size ..... 2048\n",
        *(megatron(n, 2000.0) for n in range(1, 6)),
    ],
}
START = "***** Running training *****\n  Num examples = 800\n  Total optimization steps = {}\n"
END = "{{'train_runtime': {}, 'train_samples_per_second': 4.0, 'train_steps_per_second': 0.5, 'train_loss': 1.5}}\n"
TRAINERS = {
    "other steps": [START.format(100), END.format(200.0), START.format(50), END.format(100.0)],
    "other run times": [START.format(100), END.format(200.0), START.format(100), END.format(100.0)],
}


@pytest.mark.parametrize(
    "lines", [*IN_TURNS.values(), *BEHIND.values(), *TRAINERS.values()], ids=[*IN_TURNS, *BEHIND, *TRAINERS]
)
def test_no_figure_is_given_and_the_reason_is(lines: list[str], tmp_path: Path) -> None:
    summary = summarize_log(read(tmp_path, *lines))
    data = to_object(summary)
    assert summary.reason is not None
    assert "two jobs" in summary.reason or "two trainings" in summary.reason
    assert [flag for flag in summary.flags if flag.startswith("mixed-jobs: ")]
    for name in ("median_s", "mean_s", "p95_s", "mean_all_s", "samples_per_s", "tflops_per_gpu", "iterations", "loss"):
        assert data[name] is None
    assert data["logged"] == {"samples_per_s": None, "tokens_per_s_per_gpu": None, "tflops_per_gpu": None}


def copies(ranks: int) -> list[str]:
    """What ranks without labels print, each a little apart from the others."""
    return [megatron(n, 1000.0 + 10 * n + rank) for n in range(1, 40) for rank in range(ranks)]


ONE_JOB = {
    "a restart": [megatron(n, 1000.0) for n in (*range(1, 51), *range(41, 81))],
    "four restarts": [megatron(10 * k + n, 1000.0) for k in range(5) for n in range(1, 31)],
    "a further end": [megatron(n, 1000.0, total=50) for n in range(1, 51)]
    + [megatron(n, 1000.0) for n in range(46, 81)],
    "ranks": copies(4),
    "ranks some iterations apart": [megatron(n + back, 1000.0) for n in range(10, 60) for back in (0, -3)],
    "lost lines": [megatron(n, 1000.0) for n in (*range(1, 30), *range(200, 240), *range(30, 90))],
    "a batch that grows": [megatron(n, 1000.0 + n, batch=16 * (1 + n // 20)) for n in range(1, 90)],
}


@pytest.mark.parametrize("lines", ONE_JOB.values(), ids=ONE_JOB)
def test_one_job_is_one(lines: list[str], tmp_path: Path) -> None:
    log = read(tmp_path, *lines)
    assert log.mixture is None
    assert np.ma.count(log.iterations.wall_ns) > 0


@pytest.mark.parametrize("seed", range(6))
def test_restarts_gaps_and_ranks_that_lag_are_no_second_job(seed: int) -> None:
    draw = random.Random(seed)
    series, step, number = RecordSeries(), draw.choice([1, 10, 100]), 0
    for _ in range(200):
        number += step
        if draw.random() < 0.03:
            number = max(0, number - draw.choice([0, 5, 20]) * step)
        if draw.random() < 0.01:
            number += step * draw.randrange(1, 6)
        for rank in range(draw.choice([1, 2, 4])):
            series.add(Record(max(step, number - step * (rank % 3))))
    assert series.resolved.mixture is None


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("step", [1, 10, 100])
def test_two_jobs_in_any_turns_are_two(seed: int, step: int) -> None:
    draw = random.Random(seed)
    series, first, second = RecordSeries(), 0, 40_000
    for n in range(150):
        if draw.random() < 0.5 or n < 3:
            first += step
            series.add(Record(first))
        else:
            second += 1
            series.add(Record(second))
    assert "take turns" in (series.resolved.mixture or "")


def test_other_commands_say_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.log"
    setup = "  world_size ..... 8\n  hidden_size ..... 1024\n  num_layers ..... 24\n  seq_length ..... 1024\n"
    path.write_text(setup + "".join(IN_TURNS["the same iterations at another speed"]))
    answer = run(capsys, "tflops", "--log", path)
    assert answer.code == 2
    assert "records of two jobs take turns" in answer.err
    assert "no iteration line" not in answer.err
    assert "records of two jobs take turns" in run(capsys, "scaling", path).err
    assert "records of two jobs take turns" in run(capsys, "logs", path).out
