"""``train_results.json`` and ``all_results.json`` of the Trainer's scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.analyzers.logs.summary import LogSummary, summarize_log
from perfscope.sources.joblog import read_log

ANSWER = {"epoch": 3.0, "train_loss": 0.119, "train_runtime": 80.2776, "train_samples_per_second": 23.917}
SPEED = {"train_steps_per_second": 1.495}


def read(folder: Path, figures: dict[str, float | str], *, front: str = "") -> LogSummary:
    path = folder / "train_results.json"
    path.write_text(front + json.dumps(figures, indent=4, sort_keys=True))
    return summarize_log(read_log(path))


def test_the_steps_are_the_only_integer_of_the_rounded_speed(tmp_path: Path) -> None:
    summary = read(tmp_path, {**ANSWER, **SPEED})
    assert (summary.framework, summary.status, summary.iterations) == ("hf-trainer", "ok", 120)
    assert summary.times.median_s == pytest.approx(80.2776 / 120)
    assert summary.samples_per_s == 23.917


def test_evaluations_are_no_training(tmp_path: Path) -> None:
    evaluation: dict[str, float | str] = {
        "epoch": 3.0,
        "eval_loss": 0.2,
        "eval_runtime": 10.0,
        "eval_samples_per_second": 100.0,
        "eval_steps_per_second": 12.5,
        "predict_runtime": 5.0,
        "predict_steps_per_second": 25.0,
    }
    assert read(tmp_path, evaluation).status == "unrecognised"
    alone, both = read(tmp_path, {**ANSWER, **SPEED}), read(tmp_path, {**evaluation, **ANSWER, **SPEED})
    assert both.times == alone.times
    assert both.flags == alone.flags


def test_a_speed_of_many_integers_gives_a_time_but_no_steps(tmp_path: Path) -> None:
    summary = read(tmp_path, {**ANSWER, "train_runtime": 52040.1, "train_steps_per_second": 0.115})
    assert summary.iterations is None
    assert summary.times.median_s == pytest.approx(1 / 0.115)


def test_a_speed_of_one_digit_gives_no_time(tmp_path: Path) -> None:
    summary = read(tmp_path, {**ANSWER, "train_runtime": 52040.1, "train_steps_per_second": 0.007})
    assert (summary.status, summary.times.median_s, summary.samples_per_s) == ("ok", None, 23.917)


@pytest.mark.parametrize(
    ("speed", "iterations", "samples_per_s"),
    [(1.905, 693, None), (121.51, None, 121.51), (5.0, None, None)],
    ids=["steps", "samples", "neither"],
)
def test_what_an_old_trainer_calls_samples_is_what_its_epochs_allow(
    tmp_path: Path, speed: float, iterations: int | None, samples_per_s: float | None
) -> None:
    old: dict[str, float | str] = {"epoch": 3.0, "train_runtime": 363.7124, "train_samples_per_second": speed}
    if speed == 5.0:
        assert read(tmp_path, old).times.median_s is None
        return
    summary = read(tmp_path, {**old, "train_samples": 14732})
    assert (summary.iterations, summary.samples_per_s) == (iterations, samples_per_s)


def test_damaged_figures_are_absent(tmp_path: Path) -> None:
    for damaged in ("NaN", "Infinity", "-1.0", "1e400", "0.0", '"80"', "[80]", "null"):
        figures: dict[str, float | str] = {**ANSWER, **SPEED, "train_runtime": "DAMAGED"}
        text = json.dumps(figures, indent=4).replace('"DAMAGED"', damaged)
        path = tmp_path / "train_results.json"
        path.write_text(text)
        assert summarize_log(read_log(path)).times.median_s is None


def test_beside_the_lines_of_the_trainer_they_add_nothing(tmp_path: Path) -> None:
    lines = (
        "***** Running training *****\n  Total optimization steps = 120\n"
        "{'train_runtime': 80.2776, 'train_samples_per_second': 23.9, 'train_steps_per_second': 1.495, 'epoch': 3.0}\n"
    )
    summary = read(tmp_path, {**ANSWER, **SPEED}, front=lines)
    assert (summary.log.time_source, summary.iterations) == ("train_runtime / steps", 120)


def test_planned_epochs_that_were_not_reached_give_no_step_time(tmp_path: Path) -> None:
    """As transformers 4 states a run of 2 epochs of 160 samples that stopped after 0.8."""
    figures = {"epoch": 0.8, "train_runtime": 2.204, "train_samples": 160, "train_loss": 1.7}
    speeds = {"train_samples_per_second": 145.193, "train_steps_per_second": 36.298}
    summary = read(tmp_path, {**figures, **speeds})
    assert (summary.status, summary.iterations, summary.times.median_s, summary.samples_per_s) == (
        "ok",
        None,
        None,
        None,
    )
    assert any(flag.startswith("steps-unknown: training ended before") for flag in summary.flags)
    assert read(tmp_path, {**figures, **speeds, "epoch": 2.0}).samples_per_s == 145.193
