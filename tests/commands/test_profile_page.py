"""Claims about the page at the end of ``perfscope profile``: it is there, or the summary is there without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.synthetic_runs import SyntheticRun, write_run
from perfscope.commands.profile.completion import complete
from perfscope.hooks.reach.supervise import Ending

ENDED = Ending(0, None)


def lines_of(run: Path, *, writes_page: bool) -> list[str]:
    outcome = complete(run, ENDED, writes_page=writes_page)
    return [*outcome.notes, *outcome.summary]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", SyntheticRun(ranks=2))


def test_it_is_written_and_its_path_printed(run: Path) -> None:
    lines = lines_of(run, writes_page=True)
    assert f"page: {run}/page.html" in lines
    assert (run / "page.html").read_text().startswith("<!doctype html>")
    assert any(line.startswith("12 training steps on 2 ranks") for line in lines)


def test_the_summary_is_the_same_without_it(run: Path) -> None:
    without = lines_of(run, writes_page=False)
    assert not (run / "page.html").exists()
    assert [line for line in lines_of(run, writes_page=True) if not line.startswith("page: ")] == without


def test_a_page_that_cannot_be_written_costs_nothing_else(run: Path) -> None:
    (run / "page.html").mkdir()
    lines = lines_of(run, writes_page=True)
    assert any(line.startswith("the page could not be written: ") for line in lines)
    assert any(line.startswith("12 training steps on 2 ranks") for line in lines)
    assert not list(run.glob(".page.html.*"))
