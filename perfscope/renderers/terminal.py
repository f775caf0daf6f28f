"""A report on a terminal: one screen of the most important, or sections as tables that fit its width.

No number is cut: a table that is too wide becomes several, each with the first column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from textwrap import fill
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfscope.renderers import Terminal
from perfscope.renderers.cells import ABSENT, is_numeric, to_line, to_text
from perfscope.renderers.summary import MOST_RANKS, describe_findings, describe_steps, describe_wall_clock, shares_of
from perfscope.report import Report, Section, escape_control_characters
from perfscope.units import format_count, format_seconds

_HEADING, _FAINT, _DOUBT = "bold cyan", "dim", "yellow"
_VERDICTS = {"slower": "bold red", "faster": "bold green", "same": "bold", "incomparable": "bold yellow"}
_OF_COMPARISONS = ("Figures", "Limits", "What the change is made of", "Verdicts")
_PARTS = {
    "compute": "blue",
    "exposed communication": "yellow",
    "exposed copies": "magenta",
    "data loading": "red",
    "idle": "bright_black",
    "other": "bright_black",
}
#: Rows of a finding.
_FINDING_ROWS = 4
#: Columns of a rank's name and bar, of the names and the numbers of a comparison, and of a column of texts, which wrap.
_RANK, _BAR, _NAME, _NUMBER, _NARROWEST_TEXT = 8, 24, 23, 10, 12
#: Between columns: one blank of a cell, one of the box.
_PADDING = 2


def render_screen(report: Report, terminal: Terminal) -> str:
    """Write what matters most in at most ``terminal.height`` lines; a report without a screen in full."""
    console = _console_of(terminal)
    lines: list[Text] = []
    match str(report.data.get("schema")):
        case "perfscope/analysis/1":
            lines += _draw_analysis(report.data["results"], console)
        case "perfscope/analyses/1":
            lines += map(_draw_run, report.data["analyses"])  # type: ignore[arg-type]  # they are objects
        case "perfscope/comparison/1" | "perfscope/comparisons/1":
            lines += _draw_comparison(report)
        case _:
            return render(report, terminal)
    title, verdict = _plain(report.title, "bold"), str(report.data.get("verdict", ""))
    top = [Text(verdict.capitalize(), _VERDICTS[verdict]), *_wrap(title, console)] if verdict in _VERDICTS else [title]
    end: list[Text] = []
    if report.warnings:
        following = len(report.warnings) - 1
        hint = f" ({following} more: --section warnings)" if following else ""
        end += _wrap(_plain(f"Warning{hint}: {report.warnings[0]}", _DOUBT), console)
    titles = ", ".join(section.title.lower() for section in report.sections)
    end += _wrap(_plain(f"Everything: --format md. One part: --section NAME: {titles}", _FAINT), console)
    room = terminal.height - len(top) - len(end)
    if len(lines) > room:
        lines = [*lines[: room - 1], _plain(f"... and {format_count(len(lines) - room + 1, 'more line')}", _FAINT)]
    for line in (*top, *lines, *end):
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    return _written(console)


def _draw_analysis(results: Any, console: Console) -> Iterator[Text]:  # noqa: ANN401 - JSON
    """The findings, the steps, the wall clock, and a bar a rank; of many ranks the straggler comes first."""
    for number, line in enumerate(describe_findings(results)):
        yield from _wrap(_plain(line.replace("`", ""), "yellow" if number else "bold yellow"), console, _FINDING_ROWS)
    if (steps := results.get("steps")) is not None:
        yield from _wrap(_plain(describe_steps(steps, results.get("loop"))), console)
    if (clock := results.get("wall_clock")) is not None:
        yield from _wrap(_plain(f"wall clock {describe_wall_clock(clock)}"), console)
    straggler = (results.get("stragglers") or {}).get("straggler")
    ranks = (results.get("breakdown") or results.get("host") or {"ranks": ()})["ranks"]
    if len(ranks) > MOST_RANKS:
        ranks = sorted(ranks, key=lambda rank: straggler is not None and rank["rank"] != straggler)
    yield from map(_draw_rank, ranks[:MOST_RANKS])
    if len(ranks) > MOST_RANKS:
        yield _plain(f"... and {format_count(len(ranks) - MOST_RANKS, 'more rank')}", _FAINT)


def _draw_rank(rank: Mapping[str, Any]) -> Text:
    line = Text(f"rank {'?' if rank['rank'] is None else rank['rank']}".ljust(_RANK), _HEADING)
    shares = shares_of(rank)
    before = 0.0
    for share, label in shares:
        line.append("█" * (round(_BAR * (before + share)) - round(_BAR * before)), _PARTS[label])
        before += share
    line.append(" " * (_BAR - round(_BAR * before)))
    for share, label in sorted(shares, reverse=True):
        line.append(f" {label}", _PARTS[label]).append(f" {share:.0%}")
    return line


def _draw_run(analysis: Mapping[str, Any]) -> Text:
    results = analysis["results"]
    step_s = (results.get("steps") or {}).get("step_time_s")
    time = "no step time" if step_s is None else f"{format_seconds(step_s)} a step"
    findings = results.get("findings")
    line = _plain(analysis["inputs"][0] if analysis["inputs"] else "traces", "bold").append(f": {time}; ", "not bold")
    return line.append(findings[0]["title"] if findings else "nothing stands out", _DOUBT if findings else "not bold")


def _draw_comparison(report: Report) -> Iterator[Text]:
    for section in report.sections:
        if section.title in _OF_COMPARISONS and section.rows:
            yield _plain(section.title, _HEADING)
            for row in section.rows:
                name, *cells = (to_text(cell, column) for cell, column in zip(row, section.columns, strict=True))
                yield Text("  ".join((f"{name:<{_NAME}}", *(f"{cell:>{_NUMBER}}" for cell in cells))))


def render(report: Report, terminal: Terminal) -> str:
    """Write the title, every section, and the warnings."""
    console = _console_of(terminal)
    console.print(_plain(report.title, "bold"))
    for section in report.sections:
        console.print()
        console.print(_plain(section.title, _HEADING))
        for number, columns in enumerate(_split(section, terminal.width) if section.columns else ()):
            if number:
                console.print()
            console.print(_table(section, columns, terminal.width), crop=True)
        for line in escape_control_characters(section.drawing).splitlines():
            console.print(Text(line), no_wrap=True, overflow="ellipsis")
        for note in section.notes:
            console.print(_plain(f"- {note.replace('**', '').replace('`', '')}", _FAINT))
    for warning in report.warnings:
        console.print(_plain(f"Warning: {warning}", _DOUBT))
    return _written(console)


@dataclass(frozen=True, slots=True)
class _Measure:
    """A column, and how wide it must and would be: numbers and the words of a heading are not cut, texts wrap."""

    index: int
    is_number: bool
    least: int
    best: int


def _measure(section: Section, index: int) -> _Measure:
    column, is_number = section.columns[index], is_numeric(section, index)
    cells = max((cell_len(to_text(row[index], column)) for row in section.rows), default=len(ABSENT))
    word = max(map(cell_len, to_line(column.heading).split()), default=1)
    if is_number:
        return _Measure(index, is_number, max(cells, word), max(cells, word))
    best = max(cells, cell_len(column.heading))
    return _Measure(index, is_number, max(word, min(best, _NARROWEST_TEXT)), best)


def _split(section: Section, width: int) -> Iterator[list[_Measure]]:
    """The columns of each table: as many as fit, and the first one in all of them."""
    first, *following = (_measure(section, index) for index in range(len(section.columns)))
    fitting = [first]
    for column in following:
        if len(fitting) > 1 and sum(measured.least + _PADDING for measured in (*fitting, column)) > width:
            yield fitting
            fitting = [first]
        fitting.append(column)
    yield fitting


def _table(section: Section, columns: Sequence[_Measure], width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    room = width - sum(column.least + _PADDING for column in columns)
    for column in columns:
        extra = min(max(room, 0), column.best - column.least)
        room -= extra
        heading = fill(to_line(section.columns[column.index].heading), column.least + extra)
        side: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(Text(heading), justify=side, width=column.least + extra, overflow="fold")
    for row in section.rows:
        table.add_row(*(Text(to_text(row[column.index], section.columns[column.index])) for column in columns))
    return table


def _console_of(terminal: Terminal) -> Console:
    """A console that writes into a text, as wide as the terminal."""
    return Console(
        file=StringIO(),
        width=terminal.width,
        height=terminal.height,
        force_terminal=True,
        color_system="standard" if terminal.has_colour else None,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )


def _written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def _plain(text: str, style: str = "") -> Text:
    """A text of a file as a line; nothing in it moves the cursor or sets a colour."""
    return Text(to_line(text), style)


def _wrap(line: Text, console: Console, most: int = 2) -> list[Text]:
    """At most so many rows of a long line, all but the first one indented; the last one shows where it is cut."""
    first, *following = line.wrap(console, console.width - 3) or [line]
    cut, following = following[most - 1 :], [Text("  ").append_text(row) for row in following[: most - 1]]
    for row in following:
        row.rstrip()
    if cut:
        following[-1].append(" …")
    return [first, *following]
