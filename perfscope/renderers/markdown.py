"""Markdown for people and for reports that are kept under version control."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfscope.report import Cell, Column, Report, Section

_ABSENT = "n/a"
_DEEPEST_LEVEL = 6  # of a heading, in markdown
_MARGIN = 2  # a heading's column is at least this much wider


def render(report: Report, level: int = 1) -> str:
    """Write a report as markdown: its title, its sections, its warnings.

    Args:
        report: The report.
        level: The heading level of its title; its sections are one level below.
    """
    blocks = [_heading(report.title, level)]
    for section in report.sections:
        blocks.extend(_section(section, level + 1))
    if report.warnings:
        blocks.append("\n".join(f"> **Warning:** {_one_line(warning)}" for warning in report.warnings))
    return _join(blocks)


def render_sections(sections: Iterable[Section], level: int) -> str:
    """Write sections alone, with their headings at a level."""
    return _join(block for section in sections for block in _section(section, level))


def _join(blocks: Iterable[str]) -> str:
    return "\n\n".join(blocks) + "\n"


def _heading(title: str, level: int) -> str:
    return f"{'#' * min(level, _DEEPEST_LEVEL)} {_one_line(title)}"


def _section(section: Section, level: int) -> list[str]:
    blocks = [_heading(section.title, level)]
    if section.columns:
        blocks.append(_table(section))
    if section.drawing:
        blocks.append(f"```text\n{section.drawing}\n```")
    if section.notes:
        blocks.append("\n".join(f"- {_one_line(note)}" for note in section.notes))
    return blocks


def _table(section: Section) -> str:
    cells = [[_cell(value, column) for value, column in zip(row, section.columns, strict=True)] for row in section.rows]
    headings = [_escape(column.heading) for column in section.columns]
    is_numeric = [_is_numeric(section, index) for index in range(len(headings))]
    widths = [
        max(len(heading) + _MARGIN, *map(len, column))
        for heading, *column in zip(headings, headings, *cells, strict=True)
    ]
    rules = [
        _rule(width, is_numeric=right, has_cells=bool(cells)) for width, right in zip(widths, is_numeric, strict=True)
    ]
    rows = [_row(row, widths, is_numeric) for row in (headings, *cells)]
    return "\n".join([rows[0], f"|{'|'.join(rules)}|", *rows[1:]])


def _rule(width: int, *, is_numeric: bool, has_cells: bool) -> str:
    """The line below a heading, which says how the column is aligned."""
    if not has_cells:
        return "-" * (width + 2)
    line = "-" * (width + 1)
    return f"{line}:" if is_numeric else f":{line}"


def _row(cells: Sequence[str], widths: Sequence[int], is_numeric: Sequence[bool]) -> str:
    aligned = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, is_numeric, strict=True)
    )
    return f"| {' | '.join(aligned)} |"


def _is_numeric(section: Section, index: int) -> bool:
    values = [row[index] for row in section.rows if row[index] is not None]
    return bool(values) and not any(isinstance(value, str) for value in values)


def _cell(value: Cell, column: Column) -> str:
    if value is None:
        return _ABSENT
    if isinstance(value, float):
        return f"{value:.{column.decimals}f}"
    return _escape(str(value))


def _escape(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(text.split())
