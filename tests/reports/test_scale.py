"""The report on growth follows from its recorded figures: a line, within its limits, and every late rank is found."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from benchmarks import beside_training, growth
from benchmarks.processes import best
from perfscope.constants import GB, MB
from tests.conftest import ROOT

REPORT = ROOT / "reports" / "scale.md"
#: How far a measured time may be from the line; the machine was busy.
FARTHEST = 0.35
#: By how much steps may be slower beside what measures: what the report says.
MOST_SLOWER = 0.02


def figures() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "fixtures" / "benchmarks" / "growth.json").read_text())
    return content


def test_the_report_is_fresh() -> None:
    assert growth.document(figures()) in REPORT.read_text()


def test_one_changed_figure_makes_it_stale() -> None:
    raw = figures()
    raw["jobs"]["1024"]["tools"]["tables"]["cpu_s"] = [100.0]
    assert growth.document(raw) not in REPORT.read_text()


def test_from_one_rank_to_the_largest_job() -> None:
    assert [int(count) for count in figures()["jobs"]] == list(growth.COUNTS)


def test_the_largest_job_keeps_what_is_promised() -> None:
    tables = figures()["jobs"][str(growth.PROMISED_RANKS)]["tools"]["tables"]
    seconds, peak_mb = best(tables, "cpu_s"), best(tables, "peak_mb")
    assert seconds is not None
    assert peak_mb is not None
    assert seconds <= growth.PROMISED_S  # of one processor; the command had two
    assert peak_mb * MB <= growth.PROMISED_GB * GB


def test_time_and_bytes_grow_in_a_straight_line() -> None:
    raw = figures()
    *_, away = growth.fit_line(raw)
    assert max(map(abs, away.values())) <= FARTHEST, away
    each = [
        job["moved_bytes"] / int(count) for count, job in raw["jobs"].items() if int(count) >= growth.FEWEST_ON_LINE
    ]
    assert max(each) <= 1.05 * min(each)


@pytest.mark.parametrize("count", [count for count in growth.COUNTS if count > 1])
def test_every_planted_straggler_is_named_and_no_other_rank(count: int) -> None:
    job = figures()["jobs"][str(count)]
    assert job["named"] == job["planted"]
    assert len(job["planted"]) == max(1, count // 1024)


def test_tables_of_many_ranks_stay_small() -> None:
    jobs = figures()["jobs"]
    assert jobs["16384"]["tables_bytes"] <= 1.5 * jobs["1024"]["tables_bytes"]


def test_the_line_is_that_of_least_squares() -> None:
    tables = {str(ranks): {"tools": {"tables": {"cpu_s": [2 + 0.5 * ranks]}}} for ranks in (1, 64, 128, 1024)}
    start, slope, away = growth.fit_line({"jobs": tables})
    assert start == pytest.approx(2)
    assert slope == pytest.approx(0.5)
    assert np.allclose(list(away.values()), 0)


def test_steps_beside_what_measures_follow_from_their_blocks() -> None:
    raw: dict[str, Any] = json.loads((ROOT / "fixtures" / "benchmarks" / "beside_partials.json").read_text())
    assert beside_training.document(raw) in REPORT.read_text()
    blocks = [block for turn in raw["turns"] for block in turn]
    for arm, partials in ((beside_training.MEASURED, raw["traces_of_a_rank"]), (beside_training.COMPRESSED, 0)):
        assert {block["partials"] for block in blocks if block["arm"] == arm} == {partials}  # else it shows nothing
    change, error = beside_training.change_of(raw["turns"], beside_training.MEASURED, beside_training.COMPRESSED)
    assert error is not None
    assert change + 2 * error < MOST_SLOWER
