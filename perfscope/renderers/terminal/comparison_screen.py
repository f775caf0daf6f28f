"""The screen of ``perfscope compare``: the verdict, the figures, and the largest terms of the change."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from perfscope.renderers import Terminal
from perfscope.renderers.cells import ABSENT, to_text
from perfscope.renderers.terminal.analysis_screen import draw_footer
from perfscope.renderers.terminal.lines import DOUBT, FAINT, HEADING, fit, join, plain, to_output, wrap
from perfscope.report import Cell, Column, Report, Section

_COLOURS = {"slower": "bold red", "faster": "bold green", "same": "bold", "incomparable": "bold yellow"}
_NAME = 23
_FIGURES, _TERMS, _LIMITS, _VERDICTS = "Figures", "What the change is made of", "Limits", "Verdicts"
#: A larger figure shows no decimals.
_WHOLE = 10_000
_CHANGE = Column("", 2)
_MOST_FIGURES = 6
#: A heading, a term, what is unexplained, and the sum.
_FEWEST_TERM_LINES = 4


def draw_comparison(report: Report, terminal: Terminal) -> str:
    """Draw one comparison, or the verdicts of several."""
    verdict = report.data.get("verdict")
    style = _COLOURS.get(str(verdict), "bold")
    top = [plain(verdict.capitalize(), style)] if isinstance(verdict, str) else []
    top += wrap(plain(report.title, "bold"), terminal, 3)
    sections = {section.title: section for section in report.sections}
    top += _figures(sections.get(_FIGURES), terminal) + _rows(sections.get(_LIMITS), terminal, 3)
    end = [*_warnings(report, terminal), *draw_footer(report, terminal)]
    room = terminal.height - len(top) - len(end)
    middle = _terms(sections.get(_TERMS), terminal, room) or _rows(sections.get(_VERDICTS), terminal, room)
    return to_output([*top, *middle, *end][: terminal.height], terminal)


def _figures(section: Section | None, terminal: Terminal) -> list[Text]:
    """A line a figure: both sides, and the change with its interval."""
    lines = []
    for name, a, b, change, interval, *_ in section.rows[:_MOST_FIGURES] if section else ():
        sides = f"{_number(a)} -> {_number(b)}"
        bounds = f"  ({interval})" if interval is not None else ""
        line = join(f"{name!s:<{_NAME}}", f" {sides:<26}", (f" {_signed(change)}%", "bold"), (bounds, FAINT))
        lines.append(fit(line, terminal))
    notes = section.notes[-1:] if section and not section.rows else ()
    return [*lines, *(line for note in notes for line in wrap(plain(note, DOUBT), terminal, 2))]


def _terms(section: Section | None, terminal: Terminal, room: int) -> list[Text]:
    """The largest terms, and the last two lines of the table: what is unexplained, and the sum."""
    if section is None or not section.rows or room < _FEWEST_TERM_LINES:
        return []
    rows = section.rows[:-2][: room - 3]
    lines = [fit(_term(row), terminal) for row in (*rows, *section.rows[-2:])]
    return [plain("What the change is made of (ms of a step)", HEADING), *lines]


def _term(row: Sequence[Cell]) -> Text:
    term, name, _, _, change, *_ = row
    value = change if isinstance(change, float) else 0.0
    style = "red" if value > 0 else "green"
    return join((f"{_signed(change):>10} ", style), f"{term}", f"  {name}" if name not in (None, ABSENT) else "")


def _rows(section: Section | None, terminal: Terminal, room: int) -> list[Text]:
    """The rows of a short table as lines."""
    if section is None:
        return []
    return [
        fit(
            plain("  ".join(to_text(cell, column) for cell, column in zip(row, section.columns, strict=True))), terminal
        )
        for row in section.rows[: max(room, 0)]
    ]


def _warnings(report: Report, terminal: Terminal) -> list[Text]:
    return [line for warning in report.warnings[:1] for line in wrap(plain(f"Warning: {warning}", DOUBT), terminal, 2)]


def _number(value: Cell) -> str:
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and abs(value) < 10**4
        else (f"{value:,.0f}" if isinstance(value, float) else to_text(value, _CHANGE))
    )


def _signed(value: Cell) -> str:
    return f"{value:+,.2f}" if isinstance(value, float) else to_text(value, _CHANGE)
