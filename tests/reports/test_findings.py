"""The tables of the report on findings are those of the runs."""

from __future__ import annotations

from benchmarks.injected_faults import document
from tests.conftest import ROOT


def test_the_report_is_fresh() -> None:
    assert document() in (ROOT / "reports" / "whole-loop.md").read_text()
