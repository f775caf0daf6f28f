"""What the last line of a Hugging Face Trainer without progress bars gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.logs.summary import FirstAndLast, summarize_log
from tests.sources.joblog.lines import read

DICTIONARIES = (
    "{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.5}\n{'loss': 1.5, 'learning_rate': 0.0, 'epoch': 1.0}\n"
)


def end(runtime: float, samples: float, steps: float) -> str:
    return (
        f"{{'train_runtime': {runtime}, 'train_samples_per_second': {samples}, 'train_steps_per_second': {steps}, "
        "'train_loss': 2.0, 'epoch': 1.0}\n"
    )


def test_a_speed_that_leaves_a_single_number_of_steps_gives_the_steps(tmp_path: Path) -> None:
    summary = summarize_log(read(tmp_path, DICTIONARIES, end(100.0, 32.0, 4.0)))
    assert (summary.status, summary.iterations, summary.times.median_s) == ("ok", 400, 0.25)
    assert summary.samples_per_s == 32.0
    assert summary.loss == FirstAndLast(2.5, 1.5)


def test_steps_that_the_rounded_speed_leaves_open_are_absent(tmp_path: Path) -> None:
    summary = summarize_log(read(tmp_path, DICTIONARIES, end(86400.0, 9.872, 1.234)))
    assert (summary.status, summary.iterations) == ("ok", None)
    assert summary.times.median_s == pytest.approx(1 / 1.234)
    assert summary.samples_per_s == 9.872
    assert summary.iterations is None


def test_a_speed_of_too_few_digits_gives_no_time(tmp_path: Path) -> None:
    summary = summarize_log(read(tmp_path, DICTIONARIES, end(86400.0, 9.872, 0.007)))
    assert (summary.status, summary.times.median_s, summary.samples_per_s) == ("ok", None, 9.872)
