"""The tables of the report on findings are those of the runs, and faults of the loop are found at their price."""

from __future__ import annotations

import re
from fractions import Fraction

from benchmarks.injected_faults import document, loop_document
from tests.conftest import ROOT

REPORT = (ROOT / "reports" / "whole-loop.md").read_text()


def test_the_report_is_fresh() -> None:
    assert document() in REPORT


def test_faults_of_the_loop_are_found_at_their_price_and_their_fix_is_seen() -> None:
    """At least 24 faults; their finding, price and fix are right in 95 %, and clean twins are silent."""
    table = loop_document()
    assert table in REPORT
    right, near, faster, silent = (tuple(map(int, pair)) for pair in re.findall(r"in (\d+) of (\d+)", table))
    assert right[1] >= 24
    assert all(Fraction(*pair) >= Fraction("0.95") for pair in (right, near, faster))
    assert silent[0] == silent[1]
