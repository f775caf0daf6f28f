"""Trainings that nobody here wrote: what `perfscope analyze` says of each is what its framework's own log states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import perfscope
from benchmarks.real_runs import kept_runs, look_up, table
from tests.conftest import ROOT

TRUTHS = [(run, name) for run in kept_runs() for name in json.loads((run / "truth.json").read_text())]


def test_every_record_states_a_truth() -> None:
    assert len(TRUTHS) >= 2 * 8


@pytest.fixture(scope="module")
def answers() -> dict[Path, Any]:
    """What was said of each run, which several truths ask for."""
    return {}


@pytest.mark.parametrize(("run", "name"), TRUTHS, ids=[f"{run.name}-{name}" for run, name in TRUTHS])
def test_the_answer_is_what_the_log_states(run: Path, name: str, answers: dict[Path, Any]) -> None:
    truth: dict[str, Any] = json.loads((run / "truth.json").read_text())[name]
    if run not in answers:
        answers[run] = perfscope.open(run).data
    value = look_up(answers[run], truth["pointer"])
    if "within" in truth:
        assert value == pytest.approx(truth["value"], rel=truth["within"])
    else:
        assert value == truth["value"]


def test_the_report_shows_these_figures() -> None:
    assert table() in (ROOT / "reports" / "h200-real-runs.md").read_text()
