"""The report on the page follows from its recorded figures, and what is promised of 256 ranks is kept."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.page import PROMISED_MB, PROMISED_RANKS, PROMISED_S, document
from perfscope.constants import MB, MS_PER_S
from tests.conftest import ROOT

REPORT = ROOT / "reports" / "page.md"


def figures() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "fixtures" / "benchmarks" / "page.json").read_text())
    return content


def test_the_report_is_fresh() -> None:
    assert document(figures()) in REPORT.read_text()


def test_one_changed_figure_makes_it_stale() -> None:
    raw = figures()
    raw["jobs"]["256"]["bytes"] += 100_000
    assert document(raw) not in REPORT.read_text()


def test_the_promises_are_kept() -> None:
    job = figures()["jobs"][str(PROMISED_RANKS)]
    assert min(job["wall_ms"]) <= PROMISED_S * MS_PER_S
    assert job["bytes"] <= PROMISED_MB * MB


def test_the_largest_job_has_a_page_of_bounded_size() -> None:
    jobs = figures()["jobs"]
    assert set(jobs) == {"1", "16", "256", "4096"}
    assert jobs["4096"]["bytes"] <= PROMISED_MB * MB
