"""The neutral document: what its tables refuse, and how a share becomes a cell."""

from __future__ import annotations

import pytest

from perfscope.errors import PerfscopeError
from perfscope.report import (
    Column,
    Report,
    Section,
    shorten_warnings,
)


def test_a_row_that_does_not_fit_is_a_defect() -> None:
    with pytest.raises(AssertionError, match="2 cells under 1 columns"):
        Section("s", (Column("a"),), ((1, 2),))


def test_sections_are_selected_by_their_titles_in_the_order_of_the_titles() -> None:
    report = Report("r", {}, (Section("a"), Section("b"), Section("c")))
    assert [section.title for section in report.select(["c", "a"])] == ["c", "a"]
    with pytest.raises(PerfscopeError, match="there is no section 'd'"):
        report.select(["a", "d"])


def test_warnings_of_many_ranks_are_shortened_and_counted() -> None:
    lines = [f"rank {rank} is cut off" for rank in range(600)]
    assert shorten_warnings([*lines[:512], "another"]) == (*lines[:512], "another")
    shown = shorten_warnings(["another", *lines])
    assert shown[:21] == ("another", *lines[:20])
    assert shown[21:] == ("580 more warnings, which differ from the last one in numbers alone, are in --format json",)
