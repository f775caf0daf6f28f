"""What a command returns to the command line: a report and its format, notes, and how to end."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.errors import ExitCode
from perfscope.renderers import Format, render
from perfscope.report import Report


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a command.

    Attributes:
        report: The answer, for standard output; absent where a command has none.
        format: How the report is written.
        text: What is printed as it is, for a command without a report.
        notes: Lines about the data, for standard error; hidden by ``--quiet``.
        exit_code: What the process ends with; a profiled command's own code for ``profile``.
        signal: The signal to die by instead, as the profiled command did.
    """

    report: Report | None = None
    format: Format = Format.MARKDOWN
    text: str = ""
    notes: tuple[str, ...] = ()
    exit_code: ExitCode | int = ExitCode.OK
    signal: int | None = None

    def output(self) -> str:
        """What the command prints on standard output: its report in its format, else its text."""
        return self.text if self.report is None else render(self.report, self.format)
