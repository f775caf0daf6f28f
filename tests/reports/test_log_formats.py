"""The report on log formats follows from the published lines."""

from __future__ import annotations

from benchmarks import log_excerpts
from tests.conftest import ROOT


def test_the_table_of_the_report_is_fresh() -> None:
    assert log_excerpts.document() in (ROOT / "reports" / "log-formats.md").read_text()
