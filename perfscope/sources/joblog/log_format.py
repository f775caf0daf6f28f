"""The definition of a log format: rules for the lines that a framework prints, and what follows at the end of a log.

A format is a constant. ``open`` binds it to one log and to a new state, an instance of a dataclass that extends
``FormatState``; the functions of its rules are called with that state and the matched line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from perfscope.sources.joblog.content.builder import JobLogBuilder
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.splitting.rank_runs import split_text
from perfscope.sources.joblog.splitting.split_block import PlainLines, SplitBlock, Splitter, Text
from perfscope.tables.columns import Bool


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
class BulkReading(Generic[State]):
    """The fast path of a format whose logs grow to gigabytes.

    Attributes:
        sources: The sources that it adds to; the fast path begins when each that has records has as many as are kept.
        split: Splits a block into plain lines and the rest.
        add: Adds the plain lines of a block from one row up to another.
        are_copies: Whether all of these repeat records that are known, so that they may be added before as many records
            are known as are kept; None where that is not told.
        copies_of: The source that counts the copies of other ranks, and whether it compares their times with those of
            the records that they repeat; None where lines that the splitter drops as copies say more.
        split_rank: Splits what one rank of many prints, where the same lines of all ranks can be read once. Its blocks
            have the text of the plain lines.
    """

    sources: tuple[str, ...]
    split: Splitter
    add: Callable[[State, PlainLines, int, int], None]
    are_copies: Callable[[State, PlainLines, int, int], bool] | None = None
    copies_of: tuple[str, bool] | None = None
    split_rank: Splitter | None = None


@dataclass(frozen=True, slots=True)
class Sweep(Generic[State]):
    """Lines that are so many and so much alike that they are not looked for one by one, as bars are.

    Attributes:
        anchors: Bytes of which such lines have one.
        on_text: Called with the state and whole lines: all between two lines that rules read, among others.
    """

    anchors: tuple[bytes, ...]
    on_text: Callable[[State, bytes], None]


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
        bulk: The fast path, for logs of gigabytes.
        bulk_of_others: The fast paths of its other sources, each of which may be long where the others are not.
        sweeps: The lines that are read many at once from the first one on.
        counts_lines: A line that comes for the third time in a row says more than that another process printed it.
    """

    framework: str | None
    state: Callable[[JobLogBuilder], State]
    rules: tuple[Rule[State], ...]
    sources: tuple[StepTimeSource, ...] = ()
    close: Callable[[State], None] = conclude_nothing
    framework_of: Callable[[State], str] | None = None
    role: Role = Role.TRAINER
    bulk: BulkReading[State] | None = None
    bulk_of_others: tuple[BulkReading[State], ...] = ()
    sweeps: tuple[Sweep[State], ...] = ()
    counts_lines: bool = False

    @property
    def fast_paths(self) -> tuple[BulkReading[State], ...]:
        """All its fast paths."""
        return (*((self.bulk,) if self.bulk else ()), *self.bulk_of_others)

    def open(self, log: JobLogBuilder) -> OpenFormat:
        """Make a state for one log and bind the format to it."""
        state = self.state(log)
        return OpenFormat(
            framework=self.framework,
            state=state,
            sources=self.sources,
            role=self.role,
            bind=partial(self._bind, state),
            close=partial(self.close, state),
            framework_of=partial(self.framework_of, state) if self.framework_of else None,
            fast_paths=tuple(_bind_bulk(bulk, state, counts_lines=self.counts_lines) for bulk in self.fast_paths),
            sweeps=tuple(partial(sweep.on_text, state) for sweep in self.sweeps),
        )

    def _bind(self, state: State, index: int) -> OpenRule:
        rule = self.rules[index]
        on_match, framework, frameworks = rule.on_match, self.framework, state.log.frameworks
        counts_lines = self.counts_lines or rule.reach > 0
        if framework is None or not rule.identifies:
            apply = partial(on_match, state)
            return OpenRule(rule.anchor, rule.find, apply, is_apart=rule.is_apart, counts_lines=counts_lines)
        if on_match is ignore_line:
            return OpenRule(rule.anchor, rule.find, partial(on_match, state), proves=framework)

        def prove(line: LineMatch) -> None:
            frameworks.add(framework)
            on_match(state, line)

        return OpenRule(rule.anchor, rule.find, prove, is_apart=rule.is_apart, counts_lines=counts_lines)


class LogFormat(Protocol):
    """A format with any type of state."""

    @property
    def framework(self) -> str | None:
        """The framework that prints it."""

    @property
    def fast_paths(self) -> tuple[BulkReading[Any], ...]:
        """Its fast paths."""

    @property
    def rules(self) -> Sequence[Rule[Any]]:
        """Its rules."""

    @property
    def sweeps(self) -> Sequence[Sweep[Any]]:
        """Its sweeps."""

    def open(self, log: JobLogBuilder) -> OpenFormat:
        """Make a state for one log and bind the format to it."""


@dataclass(frozen=True, slots=True)
class OpenRule:
    """A rule bound to a state.

    Attributes:
        anchor: Bytes that its lines have.
        find: Yields its lines in a block.
        apply: Writes what a line states into the log's builder.
        proves: The framework that its lines prove, where they state nothing else: one of them is enough.
        is_apart: It may be applied before or after what sweeps read before it.
        counts_lines: A line that comes for the third time in a row says something more.
    """

    anchor: bytes
    find: Callable[[bytes], Iterable[LineMatch]]
    apply: Callable[[LineMatch], None]
    proves: str | None = None
    is_apart: bool = False
    counts_lines: bool = False


@dataclass(frozen=True, slots=True)
class OpenBulkReading:
    """A fast path bound to a state; see ``BulkReading``. ``split_text`` looks for lines that all ranks print, too."""

    sources: tuple[str, ...]
    split: Splitter
    split_text: Callable[[Text, int, Bool], list[SplitBlock | bytes]]
    add: Callable[[PlainLines, int, int], None]
    are_copies: Callable[[PlainLines, int, int], bool] | None
    copies_of: tuple[str, bool] | None = None


def _bind_bulk(bulk: BulkReading[State], state: State, *, counts_lines: bool) -> OpenBulkReading:
    are_copies = partial(bulk.are_copies, state) if bulk.are_copies else None
    return OpenBulkReading(
        bulk.sources,
        bulk.split,
        partial(split_text, bulk.split, None if counts_lines else bulk.split_rank),
        partial(bulk.add, state),
        are_copies,
        bulk.copies_of,
    )


@dataclass(frozen=True, slots=True)
class OpenFormat:
    """A format bound to the state of one log; see ``Format``. ``bind`` binds a rule, when a block has its anchor."""

    framework: str | None
    state: FormatState
    sources: tuple[StepTimeSource, ...]
    role: Role
    bind: Callable[[int], OpenRule]
    close: Callable[[], None]
    framework_of: Callable[[], str] | None
    fast_paths: tuple[OpenBulkReading, ...]
    sweeps: tuple[Callable[[bytes], None], ...]
