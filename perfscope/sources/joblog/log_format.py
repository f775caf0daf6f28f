"""The definition of a log format: rules for the lines that a framework prints, and what follows at the end of a log.

A format is a constant. The functions of its rules are called with a state, an instance of a dataclass that extends
``FormatState`` and is made anew for each log, and with the matched line. Rules find lines by a literal that they
contain, and match only these, because most lines of a log are not needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from perfscope.sources.joblog.builder import JobLogBuilder
from perfscope.sources.joblog.text import parse_label, parse_number, parse_timestamp_ns
from perfscope.tables.joblog import Disturbance

#: Records glued on one line, as those of the ranks of a host may be; with as many failures to match one, half of them.
#: A line that may have more was not printed by ranks: its first record stands for it.
MOST_OF_LINE = 8
#: Bytes beyond its line that a pattern may match.
_REACH = 1 << 16


class LineMatch(msgspec.Struct):
    """A match of a rule, and where its line begins and ends in the block of text."""

    text: bytes
    line: int
    end: int
    match: re.Match[bytes]

    def __getitem__(self, group: int | str) -> bytes:
        return self.match[group] or b""

    @property
    def full_line(self) -> bytes:
        """The line from its beginning to its end."""
        return self.text[self.line : self.end]

    @property
    def label(self) -> bytes | None:
        """The label that a launcher wrote in front of the line: ``[default7]:``, ``12: ``, ``[1,3]<stdout>:``."""
        return parse_label(self.text, self.line)

    @property
    def timestamp_ns(self) -> int | None:
        """The line's first date and time, as nanoseconds since 1970 without a time zone."""
        return parse_timestamp_ns(self.text, self.line, self.end)


@dataclass(slots=True)
class FormatState:
    """The state of a format between the lines of one log; ``name`` is that of a related framework of the same lines."""

    log: JobLogBuilder
    name: str | None = field(default=None, init=False)


State = TypeVar("State", bound=FormatState)
StateT_contra = TypeVar("StateT_contra", contravariant=True)
OnMatch: TypeAlias = "Callable[[FormatState, LineMatch], None]"


def ignore_line(_state: FormatState, _line: LineMatch) -> None:
    """Do nothing: the line only identifies the framework."""


def on_restart(state: FormatState, _line: LineMatch) -> None:
    """A process begins to train."""
    state.log.on_restart()


def sets(name: str, value: str | None = None) -> OnMatch:
    """What sets an attribute of the state, to True where no value is given."""
    return lambda state, _line: setattr(state, name, value or True)


def counts(name: str, source: str = "log") -> OnMatch:
    """What sets a fact to the number in the first group of a rule's pattern."""
    return lambda state, line: state.log.set_count(name, line[1], source)


def uses_memory(unit: int, *names: str) -> OnMatch:
    """What raises peaks of memory, by their names, to the numbers in the groups of a rule's pattern."""

    def on_match(state: FormatState, line: LineMatch) -> None:
        state.log.add_memory(unit, **{name: parse_number(line[group]) for group, name in enumerate(names, 1)})

    return on_match


def disturbs(kind: Disturbance) -> OnMatch:
    """What says that training is interrupted."""
    return lambda state, _line: state.log.on_disturbance(kind)


@dataclass(frozen=True, slots=True)
class LineRule(Generic[StateT_contra]):
    """A kind of line to look for, and the function that reads it.

    Attributes:
        anchor: Bytes that such a line has; the pattern is tried only there.
        pattern: What the line must match, from its beginning on or anywhere; ``^`` and ``$`` are ends of a line. Where
            it is empty the anchor is enough.
        spans_lines: Whether the pattern may match beyond the line, for what is printed over several lines.
        begin: What such a record begins with; the pattern is tried only at the last one before the anchor, of the first
            of these that the line has. Tried everywhere, a line of beginnings costs the square of its length.
        span: How many bytes before and behind the anchor a match may take, where it is looked for only there.
        identifies: Whether such a line proves that the format's framework wrote the log.
    """

    anchor: bytes
    pattern: bytes | re.Pattern[bytes]
    on_match: Callable[[StateT_contra, LineMatch], None]
    spans_lines: bool = False
    identifies: bool = True
    begin: tuple[bytes, ...] = ()
    span: tuple[int, int] | None = None
    regex: re.Pattern[bytes] = field(init=False)

    def __post_init__(self) -> None:
        pattern = self.pattern or re.escape(self.anchor)
        object.__setattr__(self, "regex", re.compile(pattern, re.M) if isinstance(pattern, bytes) else pattern)

    def find(self, text: bytes) -> Iterator[LineMatch]:
        """Yield the matches in a block of text: of a line with eight anchors or more the first, of another each."""
        is_anywhere = not self.begin
        match_from = self.regex.search if is_anywhere else self.regex.match
        anchored = text.find(self.anchor)
        line, searched, tries = -1, 0, 0
        while anchored >= 0:
            before, line = line, text.rfind(b"\n", 0, anchored) + 1
            tries = tries + 1 if line == before else 1
            end = text.find(b"\n", anchored)
            end = len(text) if end < 0 else end
            if tries == 1 + 1 and text.count(self.anchor, anchored, end) >= MOST_OF_LINE:  # once a line
                anchored = text.find(self.anchor, end)
                continue
            first = self._beginning(text, max(line, searched), anchored)
            last = end + _REACH * self.spans_lines if self.span is None else min(end, anchored + self.span[1])
            match = match_from(text, first, last) if first >= 0 else None
            if match is not None:
                yield LineMatch(text, line, end, match)
                searched = max(anchored + len(self.anchor), match.end())
            elif is_anywhere and self.span is None:
                searched = end  # what does not match from here on does not match at a later anchor either
            else:
                searched, tries = anchored + len(self.anchor), tries + 1
            if tries >= MOST_OF_LINE:
                searched = max(end, searched)
            anchored = text.find(self.anchor, searched)

    def _beginning(self, text: bytes, line: int, anchored: int) -> int:
        """Where the record of an anchor may begin; -1 where nothing begins."""
        if self.span is not None:
            return max(line, anchored - self.span[0])
        if not self.begin:
            return line
        if self.anchor in self.begin:
            return anchored
        for begin in self.begin:
            offset = text.rfind(begin, line, anchored)
            if offset >= 0:
                return offset
        return -1


def aside(
    anchor: bytes,
    pattern: bytes | re.Pattern[bytes],
    on_match: Callable[[Any, LineMatch], None],
    *,
    spans_lines: bool = False,
    begin: tuple[bytes, ...] = (),
    span: tuple[int, int] | None = None,
) -> LineRule[Any]:
    """The rule of a kind of line that other frameworks print, too."""
    return LineRule(anchor, pattern, on_match, spans_lines=spans_lines, identifies=False, begin=begin, span=span)


class WriterRole(IntEnum):
    """What kind of software prints a format; the lowest role in a log decides its framework, and is closed first."""

    TRAINER = 0
    LIBRARY = 1
    ENGINE = 2


@dataclass(frozen=True, slots=True)
class LogFormat(Generic[State]):
    """A log format.

    Attributes:
        framework: The framework that prints it; None for lines that the log of any framework can hold.
        sources: The sources of its step times, best first: figures from which a step time follows.
        fallbacks: Sources that are used only where no other gives a time.
        close: Called at the end of a log that has lines of the format, for what can be concluded only there.
        name: The framework's name in reports, where it is another one.
        take_plain: Takes plain lines of a block at once, and yields the others; for Megatron's logs of gigabytes.
    """

    framework: str | None
    state: Callable[[JobLogBuilder], State]
    rules: tuple[LineRule[State], ...]
    sources: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    close: Callable[[State], None] = lambda _state: None
    name: str | None = None
    role: WriterRole = WriterRole.TRAINER
    take_plain: Callable[[State, bytes], Iterator[bytes]] | None = None
