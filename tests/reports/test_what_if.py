"""The tables of reports/what-if.md are those of the benchmarks that print them."""

from __future__ import annotations

import re
import statistics

from benchmarks.whatif_pairs import MISSED, PAIRS, document, document_errors
from tests.conftest import ROOT

REPORT = (ROOT / "reports" / "what-if.md").read_text()


def test_the_report_has_every_pair_as_it_is_predicted() -> None:
    assert document(PAIRS) in REPORT
    assert document(MISSED) in REPORT.partition("## What is missed")[2]


def test_the_report_has_the_error_of_every_replay() -> None:
    table = document_errors()
    assert table in REPORT
    errors = [abs(float(error)) for error in re.findall(r"\| ([+-][\d.]+) \|$", table, re.MULTILINE)]
    assert len(errors) >= 35
    assert max(errors) <= 2
    assert statistics.median(errors) <= 1
