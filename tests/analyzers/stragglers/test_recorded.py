"""Of trainings that were kept or run here, each fault is named on its rank, and clean twins are silent."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import kept_run
from benchmarks.injected_faults import find
from benchmarks.stragglers import FIXTURES, REPORT, judge_fixtures, to_markdown
from perfscope.analyzers.stragglers import records
from perfscope.analyzers.stragglers.lateness import LateCause
from perfscope.analyzers.stragglers.records import analyze
from perfscope.sources.runs.run import read_run
from tests.conftest import ROOT, SCRIPTS, environment

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


CASES = {"straggler_garbage": LateCause.GARBAGE, "straggler_data": LateCause.DATA, "straggler_saves": LateCause.SAVE}
#: What is found first in trainings with one fault; machines that are busy make pauses of their own in the others.
FIRST = {"pause": "host_pauses", "straggler_garbage": "garbage_collection", "straggler_data": "slow_data_loading"}


@pytest.mark.slow
def test_the_cause_that_was_put_in_is_found_and_stands_first(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "faults.py"), "--out", str(tmp_path), *CASES, "pause", "clean"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    for case, cause in CASES.items():
        lateness = analyze(read_run(tmp_path / case)).late
        assert (1, cause) in [(late.rank, late.cause) for late in lateness], case
        assert not [late for late in lateness if late.rank == 0 and late.cause is cause]
    found = {case: [finding.id for finding in find(tmp_path / case).findings] for case in (*FIRST, "clean")}
    assert {case: found[case][0] for case in FIRST} == FIRST, found
    assert not {"slow_data_loading", "garbage_collection", "blocking_saves"} & {*found["clean"]}
    assert "blocking_saves" in [finding.id for finding in find(tmp_path / "straggler_saves").findings]


@pytest.mark.parametrize(
    ("run", "headline", "why"),
    [
        ("findings/h200/ddp_clean", None, "fewer than 5 of their steps were timed"),
        (
            "stragglers/nccl/pipeline.device100",
            "No rank's host is late; the GPUs of ranks 0-1 could not be compared",
            "no other rank holds the same part of the model",
        ),
        ("stragglers/nccl/ddp.clean.large", "No rank is late", None),
        ("stragglers/ddp.clean", None, None),  # no GPUs
    ],
)
def test_a_slow_gpu_that_would_not_be_seen_is_said(run: str, headline: str | None, why: str | None) -> None:
    result = records.analyze(read_run(kept_run(ROOT / "fixtures" / run)))
    notes = [note for note in result.sections()[0].notes if "a slow one would not be seen" in note]
    assert [(why or "") in note for note in notes] == [True] * (why is not None)
    assert headline in (None, result.in_a_sentence())
