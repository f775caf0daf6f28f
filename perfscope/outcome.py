"""What a command gives back to the command line: text, notes and how to end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a command.

    Attributes:
        text: The data, for standard output.
        notes: Lines about the data, for standard error; hidden by ``--quiet``.
        exit_code: What the process ends with.
        signal: The signal to die by instead, as the profiled command did.
    """

    text: str = ""
    notes: tuple[str, ...] = ()
    exit_code: int = 0
    signal: int | None = None
