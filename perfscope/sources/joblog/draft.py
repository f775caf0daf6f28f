"""What has been read of a log so far; the frameworks' readers write into it, ``finish`` makes the table of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.series import KEPT, Series
from perfscope.tables.joblog import Disturbance, Fact, Memory, Save, Timer

#: No figure of a log is larger: what says so is damaged, or infinite.
LARGEST = 1e30

#: The sources of facts, best first.
SOURCES = ("arguments", "log", "deepspeed config", "records", "name")

_ENDS = (
    "the device ran out of memory",
    "the host ran out of memory",
    "SLURM cancelled it at its time limit",
    "it was cancelled",
    "it raised an exception",
    "a process of it failed",
    "srun reports an error",
)
_LABEL = re.compile(
    rb"(?:>\s+)*((?:\[default\d+\]:|\[rank\d+\]:|\[\d+,\d+\]<std(?:out|err)>:|\(\w+ pid=\d+[^)]*\) |\d{1,6}: "
    rb"|\d{1,3}(?:\.\d{1,3}){3}: "
    rb"|[A-Za-z][\w.-]*\d[\w.-]*: (?=[\[\s{]|step|Epoch))+)"
)
_TIMESTAMP = re.compile(rb"(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_NUMBER = re.compile(rb"[-+]?(?:\d[\d,_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")


#: What a fact can be.
Value: TypeAlias = "int | float | str | bool"


@dataclass(frozen=True, slots=True)
class Hit:
    """A match of a rule, and where it lies.

    Attributes:
        text: The block.
        line: Where the line begins.
        end: Where it ends.
        match: The match.
    """

    text: bytes
    line: int
    end: int
    match: re.Match[bytes]

    def __getitem__(self, group: int | str) -> bytes:
        return self.match[group] or b""

    @property
    def label(self) -> bytes | None:
        """What a launcher wrote in front of the line: ``[default7]:``, ``12: ``, ``[1,3]<stdout>:``."""
        return label_of(self.text, self.line)

    @property
    def timestamp_ns(self) -> int | None:
        """The line's first date and time, as nanoseconds since 1970 without a time zone."""
        return timestamp_ns(self.text, self.line, self.end)


@dataclass(frozen=True, slots=True)
class Rule:
    """A line to look for.

    Attributes:
        anchor: Bytes that such a line has; the pattern is tried only there.
        pattern: What the line must match, from its beginning on or anywhere.
        act: What it means.
        reach: Bytes beyond the line that the pattern may match, for what is printed over several lines.
    """

    anchor: bytes
    pattern: re.Pattern[bytes]
    act: Callable[[Draft, Hit], None]
    reach: int = 0


class Draft:
    """Everything read of one log so far."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self.series: dict[str, Series] = {}
        self.evidence: Counter[str] = Counter()
        self.saves: list[Save] = []
        self.memory = Memory()
        self.out_of_memory: str | None = None
        self.unreadable = 0
        self.timer_lines = 0
        self.remarks: dict[str, str] = {}
        self.shards: dict[tuple[int, ...], int] = {}
        self.scratch: dict[str, object] = {}
        self._facts: dict[str, dict[str, Fact]] = {}
        self._timers: dict[str, tuple[int, int]] = {}
        self._ends: dict[int, str] = {}

    def of(self, source: str) -> Series:
        """The series of one source, made when it is first asked for."""
        if source not in self.series:
            self.series[source] = Series(self.kept)
        return self.series[source]

    @property
    def records(self) -> int:
        """Records of every series so far."""
        return sum(len(series) for series in self.series.values())

    def disturb(self, kind: Disturbance) -> None:
        """Something else than training happens, inside the time of the next record where its clock runs on."""
        for series in self.series.values():
            series.disturb(kind)

    def end(self, reason: str) -> None:
        """Something ended badly; it was the run if no record follows. The gravest reason, in this order, is kept."""
        known = self._ends.get(self.records)
        if known is None or _ENDS.index(reason) < _ENDS.index(known):
            self._ends[self.records] = reason

    @property
    def ended(self) -> str | None:
        """How the run ended badly; None where nothing says so after the last record."""
        return self._ends.get(self.records)

    def note(self, name: str, value: Value, source: str) -> None:
        """Write down a fact; the last word of each source counts, because a job can start again with another set-up."""
        self._facts.setdefault(name, {})[source] = Fact(value, source)

    def forget(self, name: str) -> None:
        """Take back what was said about a name."""
        self._facts.pop(name, None)

    def note_number(self, name: str, text: bytes, source: str) -> None:
        """Write down a fact that is a count, if the text is one."""
        value = number(text)
        if value is not None and value == int(value):
            self.note(name, int(value), source)

    def has(self, name: str) -> bool:
        """Whether anything said something about a name."""
        return name in self._facts

    def number(self, name: str) -> int | None:
        """The best source's word on a count; None where there is none."""
        known = self.facts().get(name)
        value = known[0].value if known else None
        return value if isinstance(value, int) else None

    def facts(self) -> Mapping[str, tuple[Fact, ...]]:
        """Every fact, the best source first."""
        return {
            name: tuple(sorted(by_source.values(), key=lambda fact: SOURCES.index(fact.source)))
            for name, by_source in sorted(self._facts.items())
        }

    def through_epochs(self, source: str, epoch: int, step: int, length: int = 0) -> int:
        """A step's number over all epochs, where a framework counts anew in each; ``length`` is an epoch's, or 0."""
        known = self.scratch.setdefault(f"{source}: epochs", {})
        assert isinstance(known, dict)
        offset, largest = known.get(epoch, (None, 0))
        if offset is None:
            offset = sum(known.get(epoch - 1, (0, 0)))
        known[epoch] = (offset, max(largest, step, length))
        return int(offset) + step

    def restart(self) -> None:
        """A process begins to train."""
        for series in self.series.values():
            series.restart()

    def remark(self, code: str, text: str) -> None:
        """Keep the first doubt of each kind."""
        self.remarks.setdefault(code, text)

    def save(self, save: Save) -> None:
        """Append a checkpoint save, or complete the one just begun."""
        self.saves.append(save)

    def time_last_save(self, wall_ns: int, source: str) -> None:
        """Give the last save its duration; a timer's word outranks the difference of two timestamps."""
        if self.saves and (self.saves[-1].source != "timer" or source == "timer"):
            self.saves[-1] = replace(self.saves[-1], wall_ns=wall_ns, source=source)
        elif not self.saves:
            self.saves.append(Save(None, wall_ns, source, None))

    def part(self, name: str, wall_ns: int) -> None:
        """Add one line's time of a named part of the iteration."""
        lines, total = self._timers.get(name, (0, 0))
        self._timers[name] = (lines + 1, total + wall_ns)
        self.timer_lines += 1

    def timers(self) -> tuple[Timer, ...]:
        """The parts, in the order of their first line."""
        return tuple(Timer(name, lines, total // lines) for name, (lines, total) in self._timers.items())

    def see_memory(
        self,
        *,
        allocated: float | None = None,
        reserved: float | None = None,
        used: float | None = None,
        total: float | None = None,
    ) -> None:
        """Raise the peaks to what a line says, in bytes."""
        self.memory = Memory(
            _larger(self.memory.allocated_bytes, allocated),
            _larger(self.memory.reserved_bytes, reserved),
            _larger(self.memory.used_bytes, used),
            _larger(self.memory.total_bytes, total),
        )


def mention(framework: str) -> Callable[[Draft, Hit], None]:
    """Make an act that only takes note of who wrote a line."""

    def act(draft: Draft, _hit: Hit) -> None:
        draft.evidence[framework] += 1

    return act


def ending(reason: str) -> Callable[[Draft, Hit], None]:
    """Make an act that takes note of a bad end."""

    def act(draft: Draft, _hit: Hit) -> None:
        draft.end(reason)

    return act


def label_of(text: bytes, line: int) -> bytes | None:
    """What a launcher wrote in front of a line; None where it wrote nothing."""
    match = _LABEL.match(text, line, line + 120)
    return match[1] if match else None


def timestamp_ns(text: bytes, start: int, end: int) -> int | None:
    """The first date and time of a line in nanoseconds since 1970, time zone ignored; None without one."""
    match = _TIMESTAMP.search(text, start, min(end, start + 200))
    if match is None:
        return None
    try:
        whole = datetime(*(int(part) for part in match.groups()[:6]))  # type: ignore[arg-type]
    except ValueError:
        return None
    fraction = (match[7] or b"").ljust(9, b"0")
    seconds = int((whole - datetime(1970, 1, 1)).total_seconds())
    return seconds * NS_PER_S + int(fraction)


def number(text: bytes) -> float | None:
    """The number that a text begins with, thousands separated or not; None for anything else, ``1.2.3`` included.

    >>> number(b" 5,498 "), number(b"5.12e+02,"), number(b"1.2.3"), number(b"nan"), number(b"None")
    (5498.0, 512.0, None, None, None)
    """
    try:
        value = float(text)
    except ValueError:
        pass
    else:
        return value if abs(value) < LARGEST else None
    stripped = text.strip()
    match = _NUMBER.match(stripped)
    if match is None or stripped[match.end() : match.end() + 1] == b".":
        return None
    try:
        value = float(match[0].replace(b",", b"").replace(b"_", b""))
    except ValueError:
        return None
    return value if abs(value) < LARGEST else None


def _larger(known: int | None, seen: float | None) -> int | None:
    if seen is None or seen <= 0:
        return known
    return max(int(seen), known or 0)
