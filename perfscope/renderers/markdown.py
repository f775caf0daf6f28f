"""Markdown for people and for reports that are kept under version control."""

from __future__ import annotations

from collections.abc import Iterable

from tabulate import tabulate

from perfscope.renderers.cells import is_numeric, to_line, to_text
from perfscope.report import Report, Section, shorten_warnings


def render(report: Report, level: int = 1) -> str:
    """Write a report as markdown: its title at a heading level, its sections one below, its warnings."""
    blocks = [_heading(report.title, level)]
    for section in report.sections:
        blocks.extend(_section(section, level + 1))
    if report.warnings:
        blocks.append("\n".join(f"> **Warning:** {to_line(warning)}" for warning in shorten_warnings(report.warnings)))
    return _join(blocks)


def render_sections(sections: Iterable[Section], level: int) -> str:
    """Write sections alone, with their headings at a level."""
    return _join(block for section in sections for block in _section(section, level))


def _join(blocks: Iterable[str]) -> str:
    return "\n\n".join(blocks) + "\n"


def _heading(title: str, level: int) -> str:
    return f"{'#' * min(level, 6)} {to_line(title)}"  # markdown has no deeper level


def _section(section: Section, level: int) -> list[str]:
    blocks = [_heading(section.title, level)]
    if section.columns:
        blocks.append(_table(section))
    if section.drawing:
        blocks.append(f"```text\n{section.drawing}\n```")
    if section.notes:
        blocks.append("\n".join(f"- {to_line(note)}" for note in section.notes))
    return blocks


def _table(section: Section) -> str:
    cells = [
        [_escape(to_text(value, column)) for value, column in zip(row, section.columns, strict=True)]
        for row in section.rows
    ]
    alignment = ["right" if is_numeric(section, index) else "left" for index in range(len(section.columns))]
    headings = [_escape(column.heading) for column in section.columns]
    text: str = tabulate(cells, headings, tablefmt="pipe", colalign=alignment if cells else None, disable_numparse=True)
    return text


def _escape(text: str) -> str:
    return to_line(text).replace("|", "\\|")
