"""A report on a terminal: one screen of the most important, or sections as tables that fit its width.

No number is cut: a table that is too wide becomes several, each with the first column.
"""

from __future__ import annotations

import shlex
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
from perfscope.renderers.summary import (
    MOST_FINDINGS,
    REST,
    describe_doubts,
    describe_nothing,
    describe_shares,
    describe_steps,
    name_finding,
    wall_parts,
)
from perfscope.report import Report, Section, escape_control_characters
from perfscope.units import format_count, format_seconds

_HEADING, _FAINT, _DOUBT = "bold cyan", "dim", "yellow"
_VERDICTS = {
    "slower": "bold red",
    "faster": "bold green",
    "same": "bold",
    **dict.fromkeys(("not_sure", "incomparable"), "bold yellow"),
}
_OF_COMPARISONS = ("Figures", "Limits", "What the change is made of", "Verdicts")
#: Of the parts of the wall clock, the largest first.
_COLOURS = ("blue", "yellow", "magenta", "green", "cyan")
#: Columns of the bar, of the names and the numbers of a comparison, and of a column of texts, which wrap.
_BAR, _NAME, _NUMBER, _NARROWEST_TEXT = 72, 23, 10, 12
#: Between columns: one blank of a cell, one of the box.
_PADDING = 2


def render_screen(report: Report, terminal: Terminal) -> str:
    """Write what matters most in at most ``terminal.height`` lines; a report without a screen in full."""
    console = _console_of(terminal)
    lines: list[Text] = []
    match schema := str(report.data.get("schema")):
        case "perfscope/analysis/1":
            lines += _draw_analysis(report.data, console, MOST_FINDINGS)
        case "perfscope/analyses/1":
            lines += map(_draw_run, report.data["analyses"])  # type: ignore[arg-type]  # they are objects
        case "perfscope/comparison/1" | "perfscope/comparisons/1":
            lines += _draw_comparison(report, console)
        case _:
            return render(report, terminal)
    title, verdict = _plain(report.title, "bold"), str(report.data.get("verdict", ""))
    top = [title]
    if verdict in _VERDICTS:
        top = [Text(verdict.replace("_", " ").capitalize(), _VERDICTS[verdict]), *_wrap(title, console)]
    end: list[Text] = []
    if report.warnings:
        following = len(report.warnings) - 1
        hint = f" ({following} more: --section warnings)" if following else ""
        end += _wrap(_plain(f"Warning{hint}: {report.warnings[0]}", _DOUBT), console)
    end += _wrap(_plain(f"Page: {report.page}"), console) if report.page else []
    end += _wrap(_plain(_describe_more(report), _FAINT), console)
    room = terminal.height - len(top) - len(end)
    for most in range(MOST_FINDINGS - 1, 0, -1):
        if len(lines) > room and schema == "perfscope/analysis/1":
            lines = list(_draw_analysis(report.data, console, most))
    if len(lines) > room:
        lines = [*lines[: room - 1], _plain(f"... and {format_count(len(lines) - room + 1, 'more line')}", _FAINT)]
    for line in (*top, *lines, *end):
        is_whole = line.overflow == "ignore"  # a command to paste
        console.print(line, no_wrap=True, overflow=line.overflow or "ellipsis", crop=not is_whole)
    return _written(console)


def _describe_more(report: Report) -> str:
    """How to see the rest, with the command where the report is of one run."""
    match report.data:
        case {"results": {"wall_clock": _}, "inputs": [str(run), *_]}:
            return f"Everything: perfscope analyze {shlex.quote(run)} --format md. One part: --section NAME."
    return "Everything: --format md. One part: --section NAME."


def _draw_analysis(analysis: Mapping[str, Any], console: Console, most: int) -> Iterator[Text]:
    """The findings, of some the advice, too, a bar of the wall clock, the steps and the throughput."""
    results = analysis["results"]
    findings = results.get("findings")
    for number, finding in enumerate((findings or ())[:MOST_FINDINGS], 1):
        style = _DOUBT if number > 1 else f"bold {_DOUBT}"
        yield from _wrap(_plain(f"{number}. {name_finding(finding)}", style), console)
        why = f"{finding['evidence'][0]['text']} {finding['advice']}".replace("`", "")
        if number <= most:
            yield from _wrap(_plain(why), console, indent="   ")
    if findings is not None and len(findings) > MOST_FINDINGS:
        yield _plain(f"{len(findings) - MOST_FINDINGS} more: --section findings", _FAINT)
    elif findings is not None and not findings:
        yield _plain(describe_nothing(results), "bold")
    if (clock := results.get("wall_clock")) is not None:
        yield from _draw_wall_clock(clock, console)
    if (shares := describe_shares(results)) is not None:
        yield from _wrap(_plain(shares), console)
    if (steps := results.get("steps")) is not None:
        yield from _wrap(_plain(describe_steps(steps, results.get("loop"))), console)
    for line in describe_doubts(analysis):
        yield from _wrap(_plain(line, _DOUBT), console)


def _draw_wall_clock(clock: Mapping[str, Any], console: Console) -> Iterator[Text]:
    """One bar, and what its colours are."""
    parts, width = wall_parts(clock), min(console.width - 2, _BAR)
    bar, names, before = Text(), Text(), 0.0
    for (share, label), colour in zip(parts, _COLOURS, strict=False):
        style = "bright_black" if label == REST else colour
        bar.append("█" * (round(width * (before + share)) - round(width * before)), style)
        names.append(f"{'  ' if names else ''}{label}", style).append(f" {share:.1%}")
        before += share
    yield _plain(f"Wall clock of rank {clock['rank']}: {format_seconds(clock['wall_s'])}", _HEADING)
    yield bar
    yield from _wrap(names, console)


def _draw_run(analysis: Mapping[str, Any]) -> Text:
    results = analysis["results"]
    step_s = (results.get("steps") or {}).get("step_time_s")
    time = "no step time" if step_s is None else f"{format_seconds(step_s)} a step"
    findings = results.get("findings")
    line = _plain(analysis["inputs"][0] if analysis["inputs"] else "traces", "bold").append(f": {time}; ", "not bold")
    return line.append(findings[0]["title"] if findings else "nothing stands out", _DOUBT if findings else "not bold")


def _draw_comparison(report: Report, console: Console) -> Iterator[Text]:
    for section in report.sections:
        for note in section.notes if section.title.endswith("In short") else ():
            command = Text(to_line(note.strip("`")), overflow="ignore")
            yield from [command] if note.startswith("`") else _wrap(_plain(note), console)
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
            faint = _FAINT if section.columns or section.drawing else ""  # below something
            console.print(_plain(f"- {note.replace('**', '').replace('`', '')}", faint))
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


def _wrap(line: Text, console: Console, *, indent: str = "") -> list[Text]:
    """The rows of a long line, all but the first one further indented."""
    rows = line.wrap(console, console.width - 3 - len(indent)) or [line]
    first, *following = (Text(indent).append_text(row) for row in rows)
    return [first, *(Text("  ").append_text(row) for row in following)]
