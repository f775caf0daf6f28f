"""Of the trainings that were kept, each fault is named on its rank, and clean twins are silent; the report says so."""

from __future__ import annotations

import csv

import pytest

from benchmarks import kept_run
from benchmarks.stragglers import FIXTURES, REPORT, judge_fixtures, to_markdown
from perfscope.analyzers.stragglers.records import analyze
from perfscope.sources.runs.run import read_run

#: A stage without replicas: its GPU is compared with nothing.
UNSEEN = "nccl/pipeline.device100"


def test_each_fault_is_named_and_clean_twins_are_silent_and_the_report_says_so() -> None:
    answers = judge_fixtures()
    assert len(answers) == 40
    assert {answer.name for answer in answers if not answer.is_right} == {UNSEEN}
    assert to_markdown(answers) in REPORT.read_text()


@pytest.mark.parametrize("fault", ["contention", "microbatches"])
def test_waits_beside_a_fault_on_gpus_are_no_sleep(fault: str) -> None:
    """The thread that trains waits for the backward thread, or for the device: in a process that is not idle."""
    (late,) = analyze(read_run(kept_run(FIXTURES / f"nccl/deepspeed.{fault}"))).late
    assert late.cause == ("work" if fault == "microbatches" else fault)


@pytest.mark.parametrize("when", ["most", "some"])
def test_the_answer_says_whether_that_was_in_most_steps(when: str) -> None:
    with (FIXTURES / "cases.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["when"] == when and row["run"] != UNSEEN]
    assert len(rows) >= 10
    for row in rows:
        named = [late for late in analyze(read_run(kept_run(FIXTURES / row["run"]))).late if late.cause == row["cause"]]
        assert (when == "most") in {late.persistent for late in named}, row["run"]


@pytest.mark.parametrize("fault", ["pause_5", "pause_each"])
def test_the_line_of_a_late_rank_is_that_where_the_others_are_not(fault: str) -> None:
    run = read_run(kept_run(FIXTURES.parent / "findings" / "loop" / f"ddp_rank_{fault}"))
    (late,) = analyze(run).late
    assert (late.rank, late.line) == (1, "Loop.pause (tests/scripts/faults.py:194)")
