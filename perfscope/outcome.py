"""What a command returns to the command line: a report and its format, notes, and how to end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, islice

from perfscope.errors import ExitCode
from perfscope.renderers import Format, Terminal, render_in_pieces, render_on_terminal
from perfscope.report import Report

#: So many characters of an answer are joined before they are printed.
_BLOCK = 1 << 18
#: Loaded by name where an answer is larger: most are not.
_PACKED = "perfscope.packed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a command.

    Attributes:
        report: The answer, for standard output; absent where a command has none.
        format: How the report is written; where it is None, on a terminal as one screen, and elsewhere as markdown.
        in_full: Whether a terminal shows all sections of the report, not one screen of the most important.
        text: What is printed as it is, for a command without a report.
        notes: Lines about the data, for standard error; hidden by ``--quiet``.
        exit_code: What the process ends with; a profiled command's own code for ``profile``.
        signal: The signal to die by instead, as the profiled command did.
    """

    report: Report | None = None
    format: Format | None = Format.MARKDOWN
    in_full: bool = False
    text: str = ""
    notes: tuple[str, ...] = ()
    exit_code: ExitCode | int = ExitCode.OK
    signal: int | None = None

    def output(self, terminal: Terminal | None = None) -> str:
        """What the command prints on standard output: its report in its format, else its text."""
        return "".join(self._pieces(terminal))

    def blocks(self, terminal: Terminal | None = None) -> Iterable[str]:
        """The same in blocks; all of it is made before there is a first one, so that what fails prints nothing.

        What is large waits in a temporary file: made twice, once to see whether it can be made and once to be printed,
        it would take twice the time.
        """
        blocks = _join(self._pieces(terminal))
        first = tuple(islice(blocks, 2))
        held: Iterable[str] = first
        if len(first) > 1:
            held = import_module(_PACKED).hold_text(chain(first, blocks))
        return held

    def _pieces(self, terminal: Terminal | None) -> Iterable[str]:
        if self.report is None:
            return (self.text,)
        if self.format is None and terminal is not None:
            return (render_on_terminal(self.report, terminal, in_full=self.in_full),)
        return render_in_pieces(self.report, self.format or Format.MARKDOWN)


def _join(pieces: Iterable[str]) -> Iterator[str]:
    """Text in blocks, of at least so many characters but for the last; none where there is no text."""
    some: list[str] = []
    length = 0
    for piece in pieces:
        some.append(piece)
        length += len(piece)
        if length >= _BLOCK:
            yield "".join(some)
            some, length = [], 0
    if length:
        yield "".join(some)
