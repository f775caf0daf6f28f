"""``perfscope stragglers`` and ``perfscope goodput`` on good and on bad input."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from perfscope.errors import ExitCode
from tests.commands.report_cli import run
from tests.conftest import ROOT

LATE = ROOT / "fixtures" / "stragglers" / "ddp.garbage"
KILLED = ROOT / "fixtures" / "goodput" / "killed"


def test_the_late_rank_stands_in_the_title_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "stragglers", LATE)
    assert answer.code == 0
    assert answer.out.startswith("# Rank 1 is late in most steps: Python collected garbage\n")
    data = run(capsys, "stragglers", LATE, "--format", "json").data
    first = data["late"][0]
    assert (first["rank"], first["cause"], first["persistent"]) == (1, "garbage", True)
    for rank in data["ranks"]:
        assert sum(rank["parts_ns"].values()) == rank["total_ns"]


def test_analyze_has_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    analyzed = run(capsys, "analyze", LATE, "--only", "late_ranks", "--format", "json").data["results"]["late_ranks"]
    asked = run(capsys, "stragglers", LATE, "--format", "json").data
    assert {name: value for name, value in asked.items() if name not in ("schema", "warnings")} == analyzed


def test_a_rank_that_never_started_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(LATE, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "ranks" / "00000")
    answer = run(capsys, "stragglers", tmp_path / "run")
    assert answer.code != 0
    assert "needs two ranks or more" in answer.err
    assert run(capsys, "goodput", tmp_path / "run").code == ExitCode.DAMAGED_INPUT
    assert "1 of 2 ranks never reported: 0" in run(capsys, "goodput", tmp_path / "run").out


def test_a_job_without_steps_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    for command in ("stragglers", "goodput"):
        answer = run(capsys, command, tmp_path / "run")
        assert answer.code != 0
        assert "step" in answer.err


def test_wrong_options_of_goodput_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "not numbers of steps" in run(capsys, "goodput", KILLED, "--resumed-at", "x").err
    assert "does not exist" in run(capsys, "goodput", tmp_path / "none").err
    assert run(capsys, "goodput", KILLED, "--price", "-1").code != 0


def test_where_it_resumed_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    data = run(capsys, "goodput", KILLED, "--resumed-at", "3", "--format", "json").data
    assert [start["redone_steps"] for start in data["starts"]] == [5, 0]
    assert sum(data["spent_ns"].values()) == data["wall_ns"]
