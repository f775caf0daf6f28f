"""The report of the benchmarks follows from their recorded figures, and every promise is kept."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from benchmarks import many_traces, traces
from benchmarks.processes import best
from tests.conftest import ROOT

RAW = ROOT / "fixtures" / "benchmarks"
REPORT = ROOT / "reports" / "traces.md"
DOCUMENTS = {
    "traces.json": traces.document,
    "many_traces.json": many_traces.document,
}


def figures(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RAW / name).read_text())
    return content


def tools() -> dict[str, dict[str, Any]]:
    return {tool["name"]: tool for tool in figures("traces.json")["tools"]}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_report_is_fresh(name: str) -> None:
    assert DOCUMENTS[name](figures(name)) in REPORT.read_text()


def test_one_changed_figure_makes_it_stale() -> None:
    raw = figures("traces.json")
    raw["tools"][0]["wall_s"] = [2 * each for each in raw["tools"][0]["wall_s"]]
    assert traces.document(raw) not in REPORT.read_text()


@pytest.mark.parametrize("promise", traces.PROMISES, ids=lambda promise: promise[3])
def test_what_was_measured_keeps_what_is_promised(promise: tuple[str, str, str, str, float]) -> None:
    of, to, what, _, limit = promise
    one, other = best(tools()[of], what), best(tools()[to], what)
    assert one is not None
    assert other is not None
    assert one / other >= limit if limit > 0 else one / other <= -limit


def test_the_engines_printed_the_same_bytes_of_every_rank_and_named_the_one_that_is_cut() -> None:
    raw = figures("many_traces.json")
    answers = list(raw["answers"].values())
    assert len({answer["sha256"] for answer in answers}) == 1
    assert all(answer["ranks"] == raw["ranks"] for answer in answers)
    assert all(answer["damaged"] == [raw["ranks"] // 2] for answer in answers)


def test_the_drivers_memory_grows_by_partials_alone() -> None:
    raw = figures("many_traces.json")
    (few, least), (many, most) = ((int(count), peak) for count, peak in raw["driver_kb"].items())
    assert (most - least) / (many - few) < 250


def test_two_workers_are_as_much_faster_as_is_promised() -> None:
    turns = figures("many_traces.json")["in_turn_s"]
    assert statistics.median(one / two for one, two in zip(turns["serial"], turns["process"], strict=True)) >= 1.8
