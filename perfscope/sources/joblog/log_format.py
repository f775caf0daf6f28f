"""The definition of a log format: rules for the lines that a framework prints, and what follows at the end of a log.

A format is a constant. The functions of its rules are called with a state, an instance of a dataclass that extends
``FormatState`` and is made anew for each log, and with the matched line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from perfscope.sources.joblog.builder import JobLogBuilder
from perfscope.sources.joblog.rules import LineMatch, Rule


@dataclass(slots=True)
class FormatState:
    """The state of a format between the lines of one log; a format extends it with fields of its own.

    Attributes:
        log: Collects the contents of the log.
    """

    log: JobLogBuilder


class Role(IntEnum):
    """What kind of software prints a format; the lowest role in a log decides its framework, and is closed first.

    Attributes:
        TRAINER: A framework that trains.
        LIBRARY: A framework that trains, and on which other trainers are built, so that their logs have its lines, too.
        ENGINE: The software below trainers; a log is attributed to it only if no trainer is found.
    """

    TRAINER = 0
    LIBRARY = 1
    ENGINE = 2


@dataclass(frozen=True, slots=True)
class StepTimeSource:
    """A figure in a log from which a step time follows.

    Attributes:
        name: Its name in the report.
        is_fallback: It is used only where no other source gives a time.
    """

    name: str
    is_fallback: bool = False


State = TypeVar("State", bound=FormatState)


def conclude_nothing(_state: FormatState) -> None:
    """Close a format that has nothing to conclude."""


def ignore_line(_state: FormatState, _line: LineMatch) -> None:
    """Do nothing: the line only identifies the framework."""


@dataclass(frozen=True, slots=True)
class Format(Generic[State]):
    """A log format.

    Attributes:
        framework: The framework that prints it; None for lines that the log of any framework can hold.
        state: The class of its state.
        rules: The lines to look for.
        sources: The sources of its step times, best first.
        close: Called at the end of the log, for what can be concluded only there.
        framework_of: Returns the framework's name, where related frameworks print the same lines.
        role: What kind of software the framework is.
        take_plain: Takes plain lines of a block at once, and yields the others in their order; for Megatron's logs of
            gigabytes.
    """

    framework: str | None
    state: Callable[[JobLogBuilder], State]
    rules: tuple[Rule[State], ...]
    sources: tuple[StepTimeSource, ...] = ()
    close: Callable[[State], None] = conclude_nothing
    framework_of: Callable[[State], str] | None = None
    role: Role = Role.TRAINER
    take_plain: Callable[[State, bytes], Iterator[bytes]] | None = None
