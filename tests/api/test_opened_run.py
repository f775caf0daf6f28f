"""A run opened in Python: the answers of the command line, typed, and an honest reason for each that is absent."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest

import perfscope
from tests.conftest import ROOT
from tests.conftest import perfscope as command_line

FIXTURES = ROOT / "fixtures"
UNPINNED = FIXTURES / "findings" / "h200" / "unpinned"
ZERO1 = FIXTURES / "runs" / "h200_zero1"
ONE_RANK_TRACES = FIXTURES / "traces" / "single"
#: Every twelfth run or job of traces.
INPUTS = sorted({path.parent for name in ("ranks", "*.json.gz") for path in FIXTURES.rglob(name)})[::12]


def test_it_gives_what_the_command_line_gives() -> None:
    printed = json.loads(command_line("analyze", "--format", "json", UNPINNED, cwd=ROOT).stdout)
    run = perfscope.open(UNPINNED)
    assert json.loads(json.dumps(run.data)) == {key: value for key, value in printed.items() if key != "warnings"} | {
        "inputs": run.data["inputs"]
    }
    assert str(run) == command_line("analyze", UNPINNED, cwd=ROOT).stdout


def test_what_is_absent_says_why() -> None:
    saves = perfscope.open(UNPINNED).results.saves
    assert not saves
    assert isinstance(saves, perfscope.Absent)
    assert saves.reason == "no checkpoint save was timed"
    assert repr(saves) == "<no saves: no checkpoint save was timed>"
    with pytest.raises(perfscope.MissingInput, match="no checkpoint save was timed"):
        _ = saves.data()
    with pytest.raises(perfscope.MissingInput, match="no checkpoint save was timed"):
        list(saves)


def test_an_unknown_name_is_an_error_that_names_the_choices() -> None:
    run = perfscope.open(UNPINNED)
    with pytest.raises(perfscope.UsageError, match=r"no frame 'kernel': the frames are .*kernels.*collectives"):
        run.frame("kernel")
    with pytest.raises(perfscope.UsageError, match=r"no result 'step': the results are .*steps"):
        _ = run.results["step"]
    with pytest.raises(AttributeError, match=r"no result 'step': the results are .*steps"):
        _ = run.results.step
    with pytest.raises(perfscope.UsageError, match="no analyzer nothing"):
        perfscope.open(UNPINNED, only=["nothing"])


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: str(path.relative_to(FIXTURES)))
def test_every_frame_is_a_table_or_says_why_not(path: Path) -> None:
    run = perfscope.open(path)
    for name in run.frames:
        try:
            frame = run.frame(name)
        except perfscope.MissingInput:
            continue
        assert isinstance(frame, pd.DataFrame)
        assert len(frame.columns) > 1
        for column in frame.select_dtypes("number"):
            assert not any(isinstance(value, float) and math.isnan(value) for value in frame[column].dropna()), column


def test_a_frame_is_the_table_of_the_json() -> None:
    run = perfscope.open(ZERO1)
    kernels = run.frame("kernels")
    assert kernels["total_us"].sum() == pytest.approx(run.results.kernels.total_us)
    wall = run.frame("wall_clock").groupby("rank")["ns"].sum()
    assert {life.rank: life.wall_ns for life in run.results.wall_clock.ranks} == wall.to_dict()
    ranks = run.frame("ranks")
    assert list(ranks["rank"]) == [0, 1, 2, 3]
    parts = ranks[["compute_us", "exposed_communication_us", "exposed_copy_us", "idle_us"]].sum(axis=1)
    assert list(parts) == pytest.approx(list(ranks["window_us"]))
    calls = run.results.calls
    if calls:
        assert len(run.frame("calls")) == sum(len(rank.callers) for rank in calls.ranks)


def test_two_runs_compared() -> None:
    clean, slow = FIXTURES / "findings" / "h200" / "pinned", UNPINNED
    compared = perfscope.open(clean).compare(perfscope.open(slow), anyway=True, limits=["step_time>+3%"])
    assert compared.verdict == "slower"
    assert compared.data["limits"][0]["exceeded"] is True
    printed = command_line("compare", clean, slow, "--anyway", "--fail-on", "step_time>+3%", cwd=ROOT)
    assert str(compared) == printed.stdout
    assert perfscope.open(clean).compare(slow).verdict == perfscope.open(clean).compare(str(slow)).verdict


def test_a_page_of_a_run(tmp_path: Path) -> None:
    page = perfscope.open(UNPINNED).page()
    assert page.save(tmp_path / "page.html").read_text() == page.html
    assert "Unpinned copies" in page.html
    assert page._repr_html_().startswith("<iframe")
    with pytest.raises(perfscope.SourceError):
        page.save(tmp_path / "nothing" / "page.html")


def test_a_notebook_shows_tables() -> None:
    run = perfscope.open(UNPINNED)
    assert run.results.steps._repr_markdown_() == str(run.results.steps)
    assert "| Rank" in str(run.results.steps)
    assert run._repr_markdown_() == str(run)
    assert run.results.saves._repr_markdown_() == "No saves: no checkpoint save was timed"


class TestBadInput:
    def test_an_empty_run(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        shutil.copy(UNPINNED / "run.json", tmp_path / "run")
        run = perfscope.open(tmp_path / "run")
        assert isinstance(run.steps, perfscope.Absent)
        assert run.steps.reason
        assert any("no training process reported" in line for line in run.warnings)
        with pytest.raises(perfscope.MissingInput):
            run.frame("steps")
        with pytest.raises(perfscope.MissingInput):
            run.frame("ranks")

    def test_one_rank_without_a_run(self) -> None:
        run = perfscope.open(ONE_RANK_TRACES)
        assert isinstance(run.steps, perfscope.Absent)
        assert run.steps.reason == "needs a run of `perfscope profile`, not traces alone"
        with pytest.raises(perfscope.MissingInput, match="perfscope profile"):
            run.frame("steps")
        assert len(run.frame("ranks")) == 1

    def test_several_runs(self) -> None:
        with pytest.raises(perfscope.UsageError, match="these are 2 runs"):
            perfscope.open(UNPINNED, ZERO1)
