"""A report as markdown, JSON and CSV."""

from __future__ import annotations

import json
import random
import re

import pytest
from tabulate import tabulate

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


def test_every_format_has_a_module_that_renders() -> None:
    assert all(render(REPORT, each_format) for each_format in Format)


def test_json_has_null_for_what_does_not_exist() -> None:
    assert json.loads(render(REPORT, Format.JSON)) == {
        "schema": "perfscope/test/1",
        "value": None,
        "warnings": ["a doubt"],
    }


def test_json_refuses_what_is_no_number() -> None:
    with pytest.raises(ValueError, match="JSON"):
        render(Report("t", {"schema": "x", "value": float("nan")}, ()), Format.JSON)


def test_csv_has_full_precision_and_empty_cells() -> None:
    assert render(REPORT, Format.CSV) == "section,Name,Time (ms),Count\nTimes,a|b,1.005,3\nTimes,c,,12\n"


def test_tables_are_those_of_tabulate() -> None:
    """The library takes longer to import than most tables take to write."""
    generator = random.Random(3)
    alphabet = "ab|1 .,%ü"

    def text() -> str:
        return "".join(generator.choice(alphabet) for _ in range(generator.randrange(9))).strip()

    for _ in range(300):
        columns = tuple(Column(text(), generator.randrange(4)) for _ in range(generator.randrange(1, 5)))
        kinds = [generator.choice(("text", "number", "either")) for _ in columns]
        rows = tuple(
            tuple(_made_cell(generator, kind, text()) for kind in kinds) for _ in range(generator.randrange(5))
        )
        section = Section("Title", columns, rows)
        (block,) = markdown.render_sections([section], 1).split("\n\n")[1:]
        lines = [[cell.strip() for cell in _cells(line)] for line in block.strip().split("\n")]
        aligned = ["right" if rule.endswith(":") else "left" for rule in lines[1]]
        expected = tabulate(
            lines[2:], lines[0], tablefmt="pipe", colalign=aligned if rows else None, disable_numparse=True
        )
        assert block.strip("\n") == expected


def _made_cell(generator: random.Random, kind: str, text: str) -> str | float | None:
    if generator.random() < 0.2:
        return None
    is_number = kind == "number" or (kind == "either" and generator.random() < 0.5)
    return generator.choice((generator.random() * 100, generator.randrange(1000))) if is_number else text


def _cells(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line)[1:-1]
