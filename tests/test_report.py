"""The neutral document: what its tables refuse, and how a share becomes a cell."""

from __future__ import annotations

from fractions import Fraction

import pytest

from perfscope.constants import MANY_RANKS
from perfscope.errors import PerfscopeError
from perfscope.renderers import Format, render
from perfscope.report import (
    Column,
    Json,
    Report,
    Section,
    list_entries,
    percent,
    percent_of,
    shorten_warnings,
    to_plain,
)


def test_a_row_that_does_not_fit_is_a_defect() -> None:
    with pytest.raises(AssertionError, match="2 cells under 1 columns"):
        Section("s", (Column("a"),), ((1, 2),))


def test_a_share_is_shown_in_percent() -> None:
    assert percent(0.25) == 25
    assert percent(Fraction(1, 3)) == 100 / 3


def test_an_unknown_share_is_an_empty_cell() -> None:
    assert percent(None) is None


def test_a_part_of_nothing_has_no_share() -> None:
    assert percent_of(1, 8) == 12.5
    assert percent_of(0, 0) is None


def test_sections_are_selected_by_their_titles_in_the_order_of_the_titles() -> None:
    report = Report("r", {}, (Section("a"), Section("b"), Section("c")))
    assert [section.title for section in report.select(["c", "a"])] == ["c", "a"]
    with pytest.raises(PerfscopeError, match="there is no section 'd'"):
        report.select(["a", "d"])


def test_warnings_of_many_ranks_are_shortened_and_counted() -> None:
    lines = [f"rank {rank} is cut off" for rank in range(600)]
    assert shorten_warnings([*lines[:512], "another"]) == (*lines[:512], "another")
    shown = shorten_warnings(["another", *lines])
    assert shown[:9] == ("another", *lines[:8])
    assert shown[9:] == ("592 more warnings, which differ from the last one in numbers alone, are in --format json",)


def test_entries_of_very_many_ranks_are_made_when_they_are_asked_for() -> None:
    made: list[int] = []

    def to_entry(item: int) -> Json:
        made.append(item)
        return {"rank": item}

    assert list_entries(range(MANY_RANKS), to_entry) == [{"rank": rank} for rank in range(MANY_RANKS)]
    made.clear()
    entries = list_entries(range(MANY_RANKS + 1), to_entry)
    assert (len(entries), made) == (MANY_RANKS + 1, [])
    assert [entries[5], entries[5], entries[-1]] == [{"rank": 5}, {"rank": 5}, {"rank": MANY_RANKS}]
    assert made == [5, MANY_RANKS]  # who looks into an entry twice has it made once
    assert entries[:2] == [{"rank": 0}, {"rank": 1}]
    with pytest.raises(IndexError):
        entries[MANY_RANKS + 1]
    assert to_plain({"ranks": entries}) == {"ranks": [{"rank": rank} for rank in range(MANY_RANKS + 1)]}


@pytest.mark.parametrize("depth", range(6))
def test_entries_are_written_as_a_list_at_any_depth(depth: int) -> None:
    ranks = range(MANY_RANKS + 1)
    texts = []
    for value in (list_entries(ranks, lambda rank: {"rank": rank}), [{"rank": rank} for rank in ranks]):
        data: Json = value
        for _ in range(depth):
            data = {"inner": data}
        texts.append(render(Report("", {"value": data}, ()), Format.JSON))
    assert texts[0] == texts[1]
