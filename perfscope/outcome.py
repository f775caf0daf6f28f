"""What a command returns to the command line: a report and its format, notes, and how to end."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.errors import ExitCode
from perfscope.renderers import Format, Terminal, render, render_on_terminal
from perfscope.report import Report


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a command: its report, or a text that is printed as it is; and how the process ends.

    Attributes:
        format: How the report is written; where it is None, on a terminal as one screen, and elsewhere as markdown.
        in_full: Whether a terminal shows all sections of the report, not one screen of the most important.
        notes: Lines about the data, for standard error; hidden by ``--quiet``.
        summary: Lines for standard error in place of the report where standard output is no terminal.
        signal: The signal to die by instead of the exit code, as the profiled command did.
    """

    report: Report | None = None
    format: Format | None = Format.MARKDOWN
    in_full: bool = False
    text: str = ""
    notes: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()
    exit_code: ExitCode | int = ExitCode.OK
    signal: int | None = None

    def output(self, terminal: Terminal | None = None) -> str:
        """What the command prints on standard output: its report in its format, else its text."""
        if self.report is None:
            return self.text
        if self.format is None and terminal is not None:
            return render_on_terminal(self.report, terminal, in_full=self.in_full)
        return render(self.report, self.format or Format.MARKDOWN)
