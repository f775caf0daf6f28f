"""HTML fragments for notebooks: sections as tables that take the notebook's own colours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape

from perfscope.renderers.cells import is_numeric, to_line, to_text
from perfscope.report import Section, escape_control_characters, first_rows

#: A notebook keeps what it shows; all rows are in ``data`` and in the frames.
_MOST_ROWS = 25
_LEFT_OUT = "--format json"
_CODE, _STRONG = re.compile("`([^`]+)`"), re.compile(r"\*\*([^*]+)\*\*")


def render_sections(sections: Iterable[Section]) -> str:
    """Write sections one below the other; nothing in them is taken for HTML."""
    return "".join(block for section in sections for block in _section(section))


def render_lines(lines: Iterable[str]) -> str:
    """Write each line as a paragraph."""
    return "".join(f"<p>{_escape(line)}</p>" for line in lines)


def _section(section: Section) -> Iterator[str]:
    yield f"<h4>{_escape(section.title)}</h4>"
    if section.columns:
        yield _table(section)
    if section.drawing:
        yield f"<pre>{escape(escape_control_characters(section.drawing))}</pre>"
    notes = [*section.notes, *_left_out(section)]
    if notes:
        yield f"<ul>{''.join(f'<li>{_note(note)}</li>' for note in notes)}</ul>"


def _left_out(section: Section) -> list[str]:
    return [note.replace(_LEFT_OUT, "its data") for note in first_rows(section.rows, _MOST_ROWS)[1]]


def _table(section: Section) -> str:
    sides = ["right" if is_numeric(section, index) else "left" for index in range(len(section.columns))]
    headings = "".join(
        f'<th scope="col" style="text-align:{side}">{_escape(column.heading)}</th>'
        for side, column in zip(sides, section.columns, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td style="text-align:{side}">{_escape(to_text(value, column))}</td>'
            for side, column, value in zip(sides, section.columns, row, strict=True)
        )
        + "</tr>"
        for row in section.rows[:_MOST_ROWS]
    )
    return f"<table><thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table>"


def _note(note: str) -> str:
    """A note with its code and its emphasis; all else of it is text."""
    return _STRONG.sub(r"<strong>\1</strong>", _CODE.sub(r"<code>\1</code>", _escape(note)))


def _escape(text: str) -> str:
    return escape(to_line(text))
