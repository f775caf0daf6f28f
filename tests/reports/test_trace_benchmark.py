"""The report of the benchmarks follows from their recorded figures, and every promise is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import traces
from benchmarks.processes import best
from tests.conftest import ROOT

RAW = ROOT / "fixtures" / "benchmarks"
REPORT = ROOT / "reports" / "traces.md"


def figures(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RAW / name).read_text())
    return content


def tools() -> dict[str, dict[str, Any]]:
    return {tool["name"]: tool for tool in figures("traces.json")["tools"]}


def test_the_report_is_fresh() -> None:
    assert traces.document(figures("traces.json")) in REPORT.read_text()


@pytest.mark.parametrize("promise", traces.PROMISES, ids=lambda promise: promise[3])
def test_what_was_measured_keeps_what_is_promised(promise: tuple[str, str, str, str, float]) -> None:
    of, to, what, _, limit = promise
    one, other = best(tools()[of], what), best(tools()[to], what)
    assert one is not None
    assert other is not None
    assert one / other >= limit if limit > 0 else one / other <= -limit
