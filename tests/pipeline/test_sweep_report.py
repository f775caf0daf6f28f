"""The report of the sweep is what its raw figures say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.bubble_sweep import chart, document
from tests.conftest import ROOT

REPORT = ROOT / "reports" / "h200-pipeline-bubble.md"
RAW = ROOT / "fixtures" / "pipeline" / "h200_sweep" / "bubble_sweep.json"


def figures() -> dict[str, Any]:
    document_of: dict[str, Any] = json.loads(RAW.read_text())
    return document_of


def tables_of(raw: dict[str, Any]) -> str:
    """The benchmark's own text without its title."""
    return document(raw).partition("\n")[2].strip()


def is_fresh(raw: dict[str, Any], report: Path) -> bool:
    return report.read_text().endswith(tables_of(raw) + "\n")


def test_the_report_and_its_curve_are_fresh() -> None:
    raw = figures()
    assert is_fresh(raw, REPORT)
    assert REPORT.with_suffix(".svg").read_text() == chart(raw["sweep"], raw["ranks"])


def test_one_changed_figure_makes_it_stale() -> None:
    raw = figures()
    raw["sweep"][0]["trace_schedule"] += 0.01
    assert not is_fresh(raw, REPORT)


def test_trace_and_slope_agree_as_the_report_says() -> None:
    assert all(abs(row["trace_schedule"] - row["slope"]) < 0.0215 for row in figures()["sweep"])
    assert all(row["profiled_step_ms"] / row["step_ms"] < 1.1 for row in figures()["sweep"])
