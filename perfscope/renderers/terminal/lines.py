"""Lines of text that fit a terminal: wrapped, cut with a sign, coloured where colours are wanted."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from rich.console import Console
from rich.text import Text

from perfscope.renderers import Terminal
from perfscope.renderers.cells import to_line

HEADING = "bold cyan"
FAINT = "dim"
DOUBT = "yellow"


def console_of(terminal: Terminal) -> Console:
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
        soft_wrap=False,
    )


def plain(text: str, style: str = "") -> Text:
    """A text of a file as a line; nothing in it moves the cursor or sets a colour."""
    return Text(to_line(text), style=style)


def join(*parts: tuple[str, str] | str) -> Text:
    """Parts of a line, each with its style."""
    line = Text()
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        line.append_text(plain_part(text, style))
    return line


def plain_part(text: str, style: str = "") -> Text:
    """A part of a line, which keeps its outer blanks."""
    lead, trail = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    middle = to_line(text)
    return Text(" " * lead + middle + " " * (trail if middle else 0), style=style)


def wrap(line: Text, terminal: Terminal, most: int, indent: int = 0) -> list[Text]:
    """At most so many lines of a long one; the last one shows where it is cut."""
    console = console_of(terminal)
    rows = list(line.wrap(console, max(terminal.width - indent, 1)))
    if len(rows) > most:
        last = rows[most - 1].copy()
        last.rstrip()
        last.append(" …")
        last.truncate(max(terminal.width - indent, 1), overflow="ellipsis")
        rows = [*rows[: most - 1], last]
    for row in rows:
        row.rstrip()
    return [rows[0], *(Text(" " * indent).append_text(row) for row in rows[1:])] if rows else [line]


def fit(line: Text, terminal: Terminal) -> Text:
    """A line that is cut at the terminal's width."""
    cut = line.copy()
    cut.truncate(terminal.width, overflow="ellipsis")
    return cut


def to_output(lines: Iterable[Text], terminal: Terminal) -> str:
    """The lines as the terminal takes them."""
    console = console_of(terminal)
    for line in lines:
        console.print(fit(line, terminal), no_wrap=True, overflow="ellipsis", crop=True)
    return _written(console)


def _written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())
