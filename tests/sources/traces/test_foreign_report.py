"""The comparison with other readers: it sees differences, and its report is that of its figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import foreign_traces, slow_parse
from benchmarks.damaged_traces import join
from benchmarks.foreign_report import describe
from perfscope.sources.traces.reader import read_trace
from tests.sources.traces.making import call, kernel, step, write

FIXTURES = Path(__file__).parents[3] / "fixtures"
TRACES = FIXTURES / "traces"


@pytest.mark.parametrize("path", sorted(TRACES.rglob("*.json.gz")), ids=lambda path: f"{path.parent.name} {path.name}")
def test_the_fixtures_are_read_exactly_whole_and_by_step(path: Path) -> None:
    compared = foreign_traces.compare(path, path.name, {})
    assert (compared.outcome, compared.differences) == ("exact", [])


def test_sums_are_over_what_was_launched_in_a_step(tmp_path: Path) -> None:
    """Two kernels of a step with 30 ns between them, the second launched by it and ending behind it; one before."""
    events = [
        step(1, 1_000, 2_000),
        kernel("early", 900, 1_010, launch=7),
        call("cudaLaunchKernel", 1_100, 1_110, launch=1),
        kernel("a", 1_150, 1_200, launch=1),
        call("cudaLaunchKernel", 1_900, 1_910, launch=2),
        kernel("b", 1_230, 2_500, launch=2),
    ]
    path = write(tmp_path / "rank0.json", events)
    sums = foreign_traces.sums_of(*slow_parse.read_device(path))
    assert sums == {"device 0": (1_600, 170), "device 0, ProfilerStep#1": (1_350, 30)}
    assert foreign_traces.answers_of(read_trace(path)) == sums
    assert foreign_traces.idle_of_parts(*slow_parse.read_device(path)) == {"launched": 30}


def test_a_difference_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rank0.json", [kernel("a", 100, 200), kernel("b", 300, 400)])

    def without_one(path: Path) -> object:
        trace = read_trace(path)
        return replace(trace, device=trace.device.take(trace.device.start_ns > 100))

    monkeypatch.setattr(foreign_traces, "read_trace", without_one)
    compared = foreign_traces.compare(path, "rank0.json", {})
    assert compared.outcome == "differing"
    assert compared.differences == ["device: 1 for 2", "device 0: window and idle time (100, 0) for (300, 100) ns"]


def test_pieces_of_the_damage_are_added_up() -> None:
    pieces = [
        {"seed": 1, "counts": {"flip": {"said": 2}}, "most_beyond_twice_s": 0.1, "peak_memory_mb": 90},
        {"seed": 1, "counts": {"flip": {"said": 1, "refused": 1}}, "most_beyond_twice_s": 0.3, "peak_memory_mb": 80},
    ]
    assert join(pieces) == {
        "seed": 1,
        "counts": {"flip": {"refused": 1, "said": 3}},
        "most_beyond_twice_s": 0.3,
        "peak_memory_mb": 90,
    }


def test_the_report_is_that_of_the_figures() -> None:
    figures = json.loads((FIXTURES / "benchmarks" / "foreign-traces.json").read_text())
    damage = json.loads((FIXTURES / "benchmarks" / "damaged-traces.json").read_text())
    assert foreign_traces.REPORT.read_text() == describe(figures, damage)
    assert sum(sum(counts.values()) for counts in damage["counts"].values()) >= 2000
    assert not any(counts.get(outcome) for counts in damage["counts"].values() for outcome in ("silent", "traceback"))
