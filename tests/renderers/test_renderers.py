"""A report as markdown, JSON and CSV."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.renderers import Format, markdown, render
from perfscope.report import Column, Report, Section

REPORT = Report(
    "A | title",
    {"schema": "perfscope/test/1", "value": None},
    (
        Section(
            "Times",
            (Column("Name"), Column("Time (ms)", 2), Column("Count")),
            (("a|b", 1.005, 3), ("c", None, 12)),
            ("A note\nof two lines.",),
        ),
        Section("Only words", notes=("n",)),
    ),
    ("a doubt",),
)


def test_markdown() -> None:
    assert render(REPORT, Format.MARKDOWN) == (
        "# A | title\n\n## Times\n\n"
        "| Name   |   Time (ms) |   Count |\n"
        "|:-------|------------:|--------:|\n"
        "| a\\|b   |        1.00 |       3 |\n"
        "| c      |         n/a |      12 |\n\n"
        "- A note of two lines.\n\n## Only words\n\n- n\n\n> **Warning:** a doubt\n"
    )


def test_markdown_of_a_report_inside_another_document() -> None:
    report = Report("Title", {}, (Section("Section", notes=("n",)),))
    assert markdown.render(report, level=3) == "### Title\n\n#### Section\n\n- n\n"
    assert markdown.render(report, level=6) == "###### Title\n\n###### Section\n\n- n\n"
    assert markdown.render_sections(report.sections, level=2) == "## Section\n\n- n\n"


def test_json_refuses_what_is_no_number() -> None:
    with pytest.raises(ValueError, match="JSON"):
        render(Report("t", {"schema": "x", "value": float("nan")}, ()), Format.JSON)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
KEYS = st.text() | st.integers() | st.booleans()


@given(st.dictionaries(st.text(), st.recursive(PLAIN, lambda of: st.lists(of) | st.dictionaries(KEYS, of))))
def test_json_is_what_the_standard_library_writes(data: dict[str, Any]) -> None:
    expected = json.dumps({**data, "warnings": ["a", "b"]}, indent=2) + "\n"
    assert render(Report("t", data, (), ("a", "b")), Format.JSON) == expected


@pytest.mark.parametrize("text", ["\udc80.json", "\ud83d", "\ud83d\ude00", '\u2028\n\\"'])
def test_json_of_a_name_that_is_no_utf_8_is_what_the_standard_library_writes(text: str) -> None:
    data: dict[str, Any] = {"results": {"a": {"ranks": [{"trace": text, text: [{"deep": [text]}]}]}}}
    expected = json.dumps({**data, "warnings": []}, indent=2) + "\n"
    assert render(Report("t", data, ()), Format.JSON) == expected


def test_csv_has_full_precision_and_empty_cells() -> None:
    assert render(REPORT, Format.CSV) == "section,Name,Time (ms),Count\nTimes,a|b,1.005,3\nTimes,c,,12\n"
