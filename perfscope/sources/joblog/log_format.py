"""What a log format is: the lines that a framework prints, what they mean, and what is concluded at the end.

A format is a value. Opened for one log it has a state of its own, an instance of a dataclass that extends
``FormatState``; the functions of its rules get that state and the matched line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Generic, Protocol, TypeVar

from perfscope.sources.joblog.builder import JobLogBuilder
from perfscope.sources.joblog.bulk import PlainLines, Splitter
from perfscope.sources.joblog.rules import LineMatch, Rule


@dataclass(slots=True)
class FormatState:
    """What a format remembers of one log; a format extends it with fields of its own.

    Attributes:
        log: The table in the making.
    """

    log: JobLogBuilder


class Role(IntEnum):
    """What prints a format; the lower one decides which framework wrote a log, and is closed first.

    Attributes:
        TRAINER: A framework that trains.
        LIBRARY: A framework that trains, and that other trainers are built on: they print its lines, too.
        ENGINE: What trainers run on; it wrote a log only where no trainer did.
    """

    TRAINER = 0
    LIBRARY = 1
    ENGINE = 2


@dataclass(frozen=True, slots=True)
class StepTimeSource:
    """Something that a framework prints and that a step time follows from.

    Attributes:
        name: What it is, in the words of the report.
        is_fallback: It counts only where no other source gives a time.
    """

    name: str
    is_fallback: bool = False


State = TypeVar("State", bound=FormatState)


def conclude_nothing(_state: FormatState) -> None:
    """Close a format that has nothing to conclude."""


def ignore_line(_state: FormatState, _line: LineMatch) -> None:
    """Take a line only as a proof of its framework."""


@dataclass(frozen=True, slots=True)
class BulkReading(Generic[State]):
    """The fast path of a format whose logs grow to gigabytes.

    Attributes:
        source: The source whose kept records must be complete before the path is taken.
        rule: The rule of an iteration record, for a block that contains nothing else.
        split: Splits a block.
        add: Adds plain lines of a block, from one row up to another.
    """

    source: str
    rule: Rule[State]
    split: Splitter
    add: Callable[[State, PlainLines, int, int], None]


@dataclass(frozen=True, slots=True)
class Format(Generic[State]):
    """A log format.

    Attributes:
        framework: What prints it; None for lines that any framework's log can hold.
        state: Makes the state for one log; the class itself.
        rules: Its lines.
        sources: What a step time follows from, best first.
        close: Concludes what can be known only at the end of the log.
        framework_of: The framework's name where relatives of it print the same lines.
        role: Whether other frameworks print its lines, too.
        bulk: Its fast path.
    """

    framework: str | None
    state: Callable[[JobLogBuilder], State]
    rules: tuple[Rule[State], ...]
    sources: tuple[StepTimeSource, ...] = ()
    close: Callable[[State], None] = conclude_nothing
    framework_of: Callable[[State], str] | None = None
    role: Role = Role.TRAINER
    bulk: BulkReading[State] | None = None

    def open(self, log: JobLogBuilder) -> OpenFormat:
        """Make a state for one log and bind the format to it."""
        state = self.state(log)
        return OpenFormat(
            framework=self.framework,
            sources=self.sources,
            role=self.role,
            rules=tuple(self._bind(rule, state) for rule in self.rules),
            close=partial(self.close, state),
            framework_of=partial(self.framework_of, state) if self.framework_of else None,
            bulk=self._bind_bulk(self.bulk, state) if self.bulk else None,
        )

    def _bind(self, rule: Rule[State], state: State) -> OpenRule:
        on_match, framework, frameworks = rule.on_match, self.framework, state.log.frameworks
        if framework is None or not rule.identifies:
            return OpenRule(rule.find, partial(on_match, state))

        def apply(line: LineMatch) -> None:
            frameworks.add(framework)
            on_match(state, line)

        return OpenRule(rule.find, apply)

    def _bind_bulk(self, bulk: BulkReading[State], state: State) -> OpenBulkReading:
        return OpenBulkReading(bulk.source, self._bind(bulk.rule, state), bulk.split, partial(bulk.add, state))


class LogFormat(Protocol):
    """A format, whatever its state."""

    @property
    def framework(self) -> str | None:
        """What prints it."""

    def open(self, log: JobLogBuilder) -> OpenFormat:
        """Make a state for one log and bind the format to it."""


@dataclass(frozen=True, slots=True)
class OpenRule:
    """A rule bound to a state.

    Attributes:
        find: Yields its lines in a block.
        apply: Does what a line means.
    """

    find: Callable[[bytes], Iterable[LineMatch]]
    apply: Callable[[LineMatch], None]


@dataclass(frozen=True, slots=True)
class OpenBulkReading:
    """A fast path bound to a state; see ``BulkReading``."""

    source: str
    rule: OpenRule
    split: Splitter
    add: Callable[[PlainLines, int, int], None]


@dataclass(frozen=True, slots=True)
class OpenFormat:
    """A format bound to the state of one log; see ``Format``."""

    framework: str | None
    sources: tuple[StepTimeSource, ...]
    role: Role
    rules: tuple[OpenRule, ...]
    close: Callable[[], None]
    framework_of: Callable[[], str] | None
    bulk: OpenBulkReading | None
