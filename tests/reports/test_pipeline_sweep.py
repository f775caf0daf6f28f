"""The report of the sweep is what its raw figures say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bubble_sweep import chart, document
from tests.conftest import ROOT

REPORTS = ROOT / "reports"
RAW = ROOT / "fixtures" / "pipeline" / "h200_sweep"
SWEEPS = {
    "h200-pipeline-bubble": "bubble_sweep",
    "h200-deepspeed-pipeline": "deepspeed_pp2",
    "h200-megatron-pipeline": "megatron_pp2",
}


def figures(name: str) -> dict[str, Any]:
    document_of: dict[str, Any] = json.loads((RAW / f"{SWEEPS[name]}.json").read_text())
    return document_of


def tables_of(raw: dict[str, Any]) -> str:
    """The benchmark's own text without its title."""
    return document(raw).partition("\n")[2].strip()


def is_fresh(raw: dict[str, Any], report: Path) -> bool:
    return report.read_text().endswith(tables_of(raw) + "\n")


@pytest.mark.parametrize("name", SWEEPS)
def test_a_report_and_its_curve_are_fresh(name: str) -> None:
    raw = figures(name)
    assert is_fresh(raw, REPORTS / f"{name}.md")
    assert (REPORTS / f"{name}.svg").read_text() == chart(raw["sweep"], raw["ranks"])


@pytest.mark.parametrize("name", SWEEPS)
def test_one_changed_figure_makes_it_stale(name: str) -> None:
    raw = figures(name)
    raw["sweep"][0]["trace_schedule"] += 0.01
    assert not is_fresh(raw, REPORTS / f"{name}.md")


@pytest.mark.parametrize(
    ("name", "points"),
    [("h200-pipeline-bubble", 0.0215), ("h200-megatron-pipeline", 0.011), ("h200-deepspeed-pipeline", 0.046)],
)
def test_trace_and_slope_agree_as_the_reports_say(name: str, points: float) -> None:
    assert all(abs(row["trace_schedule"] - row["slope"]) < points for row in figures(name)["sweep"])
    assert all(row["profiled_step_ms"] / row["step_ms"] < 1.1 for row in figures(name)["sweep"])
