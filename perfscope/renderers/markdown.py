"""Markdown for people and for reports that are kept under version control."""

from __future__ import annotations

from tabulate import tabulate

from perfscope.report import Cell, Column, Report, Section

_ABSENT = "n/a"


def render(report: Report) -> str:
    """Write a report as markdown: a title, then a heading and a table a section, then its notes."""
    blocks = [f"# {_one_line(report.title)}"]
    for section in report.sections:
        blocks.extend(_section(section))
    if report.warnings:
        blocks.append("\n".join(f"> **Warning:** {_one_line(warning)}" for warning in report.warnings))
    return "\n\n".join(blocks) + "\n"


def _section(section: Section) -> list[str]:
    blocks = [f"## {_one_line(section.title)}"]
    if section.columns:
        blocks.append(_table(section))
    if section.drawing:
        blocks.append(f"```text\n{section.drawing}\n```")
    if section.notes:
        blocks.append("\n".join(f"- {_one_line(note)}" for note in section.notes))
    return blocks


def _table(section: Section) -> str:
    cells = [[_cell(value, column) for value, column in zip(row, section.columns, strict=True)] for row in section.rows]
    alignment = ["right" if _is_numeric(section, index) else "left" for index in range(len(section.columns))]
    headings = [_escape(column.heading) for column in section.columns]
    text: str = tabulate(cells, headings, tablefmt="pipe", colalign=alignment if cells else None, disable_numparse=True)
    return text


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
