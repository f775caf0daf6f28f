"""How blocks of steps with marks and without become one figure."""

from __future__ import annotations

import json
import math
from statistics import mean, stdev
from typing import Any

import pytest

from benchmarks.marked_blocks import NO_MARKS, OURS, RANGES, Block, choose_cases, choose_cores, summarize
from tests.conftest import ROOT

(CASE,) = choose_cases(small=True)


def record(slower: float, *, probe: float = 1.0) -> dict[str, Any]:
    """A process: two turns of blocks whose speed drifts, and one in which the processor changed its speed."""
    turns = []
    for step, speed in ((1.0, 1.0), (1.3, 1.0), (1.0, 1.6)):
        turns += [
            Block(RANGES, 1.5 * step, 0.9, probe),
            Block(NO_MARKS, step, 0.4, probe),
            Block(OURS, step * slower * speed, 0.4 + (slower - 1) * step, probe * speed),
        ]
    return {"marks": 7, "blocks": turns}


def test_a_figure_is_of_blocks_of_equal_speed_in_the_same_turn() -> None:
    change = summarize(CASE, OURS, [record(1.02), record(1.04)])
    assert (change.marks, change.pairs, change.left_out) == (7, 4, 2)
    assert change.processes == pytest.approx([100 * math.log(1.02), 100 * math.log(1.04)])
    assert change.percent == pytest.approx(sum(change.processes) / 2)
    assert change.error == pytest.approx(100 * (math.log(1.04) - math.log(1.02)) / 2)
    assert change.forward_percent == pytest.approx(3.0)
    assert summarize(CASE, RANGES, [record(1.02), record(1.04)]).percent == pytest.approx(100 * math.log(1.5))


def read_runs() -> list[list[dict[str, Any]]]:
    names = ("marked_blocks.json", "marked_blocks_again.json")
    return [json.loads((ROOT / "fixtures" / "modules" / name).read_text())["changes"] for name in names]


def test_the_report_states_what_was_measured() -> None:
    report = (ROOT / "reports" / "h200-modules.md").read_text()
    for change in (change for run in read_runs() for change in run):
        shares = [f"{change[name]:.1f}" for name in ("percent", "error", "forward_percent", "forward_error")]
        cells = [change["case"], str(change["marks"]), f"{change['step_ms']:.1f}", change["kind"], str(change["pairs"])]
        assert f"| {' | '.join(cells + shares)} |" in report
        assert change["percent"] == pytest.approx(mean(change["processes"]))


def test_marks_lengthen_steps_that_the_host_bounds_by_less_than_three_percent() -> None:
    report, page = ((ROOT / name).read_text() for name in ("reports/h200-modules.md", "docs/modules.md"))
    for first, second in zip(*read_runs(), strict=True):
        if first["kind"] != OURS:
            continue
        processes = [*first["processes"], *second["processes"]]
        error = stdev(processes) / math.sqrt(len(processes))
        assert mean(processes) + 2 * error < 3
        assert f"{mean(processes):.1f} % ({first['case'].split()[0].rstrip(',')}, " in report
        assert f"{mean(processes):.1f} % ({first['case'].split()[0].rstrip(',')}, {first['marks']} " in page


def test_each_process_has_cores_of_its_own_where_there_are_enough() -> None:
    places = choose_cores(1)
    assert len(places) == 1
    assert 1 <= len(places[0]) <= 2
