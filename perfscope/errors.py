"""Every error that a user can meet, and how the command ends with it.

::

    PerfscopeError                 1  something failed.
    ├── UsageError                 2  what was typed cannot be right.
    │   └── CommandNotFound      127  the command to profile does not exist.
    ├── SourceError                1  a file cannot be read as what it should be.
    │   └── NotATrace              1  it is something else; ignored in a folder unless its name says trace.
    └── MissingInput                  an analyzer lacks an input: listed as skipped, never fatal.

They are raised anywhere and caught once, in ``perfscope.cli``.
"""

from __future__ import annotations

import os
from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ends; ``profile`` ends as the profiled command did."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DIFFERENCE = 3
    DAMAGED_INPUT = 4
    COMMAND_NOT_FOUND = 127
    INTERRUPTED = 130


class PerfscopeError(Exception):
    """What happened, and what to do about it."""

    exit_code = ExitCode.FAILED

    def __init__(self, problem: str, *, hint: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # below a traceback: in Python nobody else prints it


class UsageError(PerfscopeError):
    """What was typed cannot be right."""

    exit_code = ExitCode.USAGE


class CommandNotFound(UsageError):
    """The command to profile does not exist; the code is the one that a shell gives."""

    exit_code = ExitCode.COMMAND_NOT_FOUND


class SourceError(PerfscopeError):
    """A file cannot be read as what it should be.

    >>> str(SourceError("a.json", "is empty"))
    'a.json is empty'
    """

    def __init__(self, path: str | os.PathLike[str], problem: str, *, hint: str | None = None) -> None:
        super().__init__(f"{os.fspath(path)} {problem}", hint=hint)
        self.path = os.fspath(path)


class NotATrace(SourceError):
    """A file is not a trace of torch.profiler."""


class MissingInput(PerfscopeError):
    """An analyzer lacks an input. The report lists the reason instead of a number."""


class NotApplicable(MissingInput):
    """An analyzer is for inputs of another kind. It is listed only where it is asked for."""


class NoDevice(MissingInput):
    """An analyzer of devices sees none, in traces or among the samples of NVML."""
