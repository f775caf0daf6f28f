"""Calls of the CUDA runtime that hold the host up, by who makes them, and what a step would gain without them.

While a call waits, the host launches nothing. What steps lose is the idle time that follows until the next such call:
the device has run out of work. Over all steps it is at most as long as the calls blocked, because that far the host
would otherwise have got ahead. A *synchronisation* waits for the device; a *pageable* copy waits for the copy of
memory that is not pinned; an *allocation* asks the driver for memory or returns it.

Who calls is the outermost operator that may wait (``aten::item``), and, where stacks were recorded, the innermost
function of the script. All figures are of the marked steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Annotated

import numpy as np

from perfscope.constants import NS_PER_US
from perfscope.errors import MissingInput, NoDevice
from perfscope.measures.host_activity import waits_for_device
from perfscope.measures.idle_gaps import gaps_of_device
from perfscope.measures.rank_labels import in_order
from perfscope.report import MOST_ROWS, Section
from perfscope.result import MS_OF_NS, Column, Doc, Figures, InUnit, Result, Table, figure
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, HostSpans, Trace, distinct, span_at

SYNCHRONISATION, PAGEABLE, ALLOCATION = KINDS = "synchronisation", "pageable", "allocation"
_ALLOCATES = re.compile(r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostFree|MallocHost|FreeHost|MallocAsync)(?:_v\d+)?$")
_PAGEABLE = re.compile(r"Pageable -> Device")
_TO_PAGEABLE = re.compile(r"Device -> Pageable")
#: The host does nothing else between two calls that are so near.
_AT_ONCE_NS = 20_000
_SCRIPT = ".py("


class Caller(Figures, frozen=True, array_like=True):
    """Calls of one kind by one caller; counts and nanoseconds are of all marked steps, figures of a mean one."""

    kind: Annotated[str, Doc("``synchronisation``, ``pageable`` or ``allocation``.")]
    operator: Annotated[str | None, Doc("The outermost operator that may wait.")]
    function: Annotated[str | None, Doc("The function of the script; None without stacks.")]
    steps: int
    count: int
    blocked: int
    idle: int
    calls = InUnit("count", 1, "How many calls.", per="steps")
    blocked_us = InUnit("blocked", NS_PER_US, "How long they took.", per="steps")
    idle_us = InUnit("idle", NS_PER_US, "Idle time from each call's beginning to the next one's.", per="steps")
    regained_us = InUnit("regained", NS_PER_US, "Idle time that the step would not have without them.", per="steps")

    @property
    def regained(self) -> int:
        """The idle time that the steps would not have without them."""
        return min(self.blocked, self.idle)


class BlockingCalls(Figures, frozen=True):
    """Calls of one kind in a mean marked step."""

    calls: Annotated[float, Doc("How many.")]
    blocked_us: Annotated[float, Doc("How long they took.")]
    regained_us: Annotated[float, Doc("Idle time that the step would not have without them.")]


class PageableCalls(BlockingCalls, frozen=True):
    """Copies of memory that is not pinned."""

    bytes: Annotated[float, Doc("What they copy.")]


class RankBlockingCalls(Figures, frozen=True, array_like=True):
    """The calls of one device's host."""

    rank: Annotated[int | None, Doc("The rank.")]
    device: Annotated[int, Doc("Index of its GPU.")]
    steps: Annotated[int, Doc("How many steps are marked.")]
    callers: Annotated[tuple[Caller, ...], Doc("By caller, what a step loses most by first.")]
    pageable_bytes: int

    @figure
    def synchronisation(self) -> BlockingCalls:
        """Waits for the device."""
        return BlockingCalls(*self._sums(SYNCHRONISATION))

    @figure
    def pageable(self) -> PageableCalls:
        """Copies of memory that is not pinned."""
        return PageableCalls(*self._sums(PAGEABLE), self.pageable_bytes / self.steps)

    @figure
    def allocation(self) -> BlockingCalls:
        """Requests of memory from the driver."""
        return BlockingCalls(*self._sums(ALLOCATION))

    def _sums(self, kind: str) -> tuple[float, float, float]:
        members = [caller for caller in self.callers if caller.kind == kind]
        blocked, idle = sum(caller.blocked for caller in members), sum(caller.idle for caller in members)
        calls = sum(caller.count for caller in members)
        return calls / self.steps, blocked / self.steps / NS_PER_US, min(blocked, idle) / self.steps / NS_PER_US


class Calls(Result, frozen=True):
    """``results.calls``: calls of CUDA that hold the host up."""

    ranks: Annotated[Sequence[RankBlockingCalls], Doc("Each device.")]

    TABLES = (
        Table(
            "Calls that hold the host up",
            "",
            (
                Column("Rank", lambda row: None if row[0].rank is None else str(row[0].rank)),
                Column("Kind", lambda row: row[1].kind),
                Column("Operator", lambda row: row[1].operator),
                Column("Function", lambda row: row[1].function),
                Column("Calls", lambda row: row[1].calls),
                Column("Blocked (ms)", lambda row: MS_OF_NS(row[1].blocked / row[1].steps), None, 3),
                Column("Lost (ms)", lambda row: MS_OF_NS(row[1].regained / row[1].steps), None, 3),
            ),
        ),
    )

    def sections(self) -> tuple[Section, ...]:
        """A row a rank and caller."""
        rows = ((rank, caller) for rank in self.ranks for caller in rank.callers)
        note = "In a mean step. Lost: idle time after the calls until the next one, at most as long as they blocked."
        return (self.TABLES[0].section(rows, [note], most=MOST_ROWS),)


def measure(trace: Trace) -> tuple[RankBlockingCalls, ...] | None:
    """The calls of each device of one trace; None where it marks no step with device events."""
    if not len(trace.device) or not len(trace.calls) or not len(trace.steps):
        return None
    return tuple(_measure_device(trace, device) for device in distinct(trace.device.device))


def analyze(partials: Sequence[tuple[RankBlockingCalls, ...]]) -> Calls:
    """Put the ranks in order; NoDevice without device events in marked steps, MissingInput without such a call."""
    ranks = in_order(chain.from_iterable(partials), "device")
    if not ranks:
        raise NoDevice("the traces contain no GPU events in marked steps")
    if not any(rank.callers for rank in ranks):
        raise MissingInput("no call in the marked steps holds the host up")
    return Calls(ranks)


def _measure_device(trace: Trace, device: int) -> RankBlockingCalls:
    kinds, copied = _kinds(trace, device)
    in_steps = span_at(trace.steps, trace.calls.start_ns) != ABSENT
    launches = trace.launch[(trace.device.device == device) & (trace.launch != ABSENT)]
    threads = distinct(trace.calls.thread[launches]) if len(launches) else []
    rows = np.flatnonzero((kinds != ABSENT) & in_steps & np.isin(trace.calls.thread, threads))
    blocking = trace.calls.take(rows)
    idle = _idle_behind(trace, device, blocking)
    callers = _name_callers(trace, blocking)
    sums: dict[tuple[int, str, str], list[int]] = {}
    for kind, caller, blocked_ns, idle_ns in zip(
        kinds[rows].tolist(), callers, blocking.duration_ns.tolist(), idle.tolist(), strict=True
    ):
        entry = sums.setdefault((kind, *caller), [0, 0, 0])
        for index, amount in enumerate((1, blocked_ns, idle_ns)):
            entry[index] += amount
    callers_of_calls = [
        Caller(KINDS[kind], operator or None, function or None, len(trace.steps), *entry)
        for (kind, operator, function), entry in sums.items()
    ]
    return RankBlockingCalls(
        rank=trace.rank,
        device=device,
        steps=len(trace.steps),
        callers=tuple(
            sorted(callers_of_calls, key=lambda caller: (-caller.regained, -caller.blocked, caller.operator or ""))
        ),
        pageable_bytes=int(copied[rows].sum()),
    )


def _kinds(trace: Trace, device: int) -> tuple[Int64, Int64]:
    """For each call the index of its kind in KINDS, or ABSENT, and the bytes that a pageable copy copies."""
    calls = trace.calls
    kinds = np.full(len(calls), ABSENT, np.int64)
    kinds[waits_for_device(trace)] = KINDS.index(SYNCHRONISATION)
    kinds[trace.called(_ALLOCATES)] = KINDS.index(ALLOCATION)
    is_of_device = (trace.device.device == device) & (trace.launch != ABSENT)
    # A copy into memory that is not pinned returns when it has ended.
    waits = trace.named(_TO_PAGEABLE)[trace.device.name] & is_of_device
    kinds[trace.launch[waits]] = KINDS.index(SYNCHRONISATION)
    is_copy = trace.named(_PAGEABLE)[trace.device.name] & is_of_device
    events = np.flatnonzero(is_copy)
    copied = np.zeros(len(calls), np.int64)
    kinds[trace.launch[events]] = KINDS.index(PAGEABLE)
    copied[trace.launch[events]] = np.maximum(trace.device.bytes[events], 0)
    return kinds, copied


def _idle_behind(trace: Trace, device: int, blocking: HostSpans) -> Int64:
    """For each call the idle time from its beginning to the next one's.

    Calls that follow each other at once, as the copy and the wait of one ``aten::item``, are one: it counts for the
    longest of them.
    """
    idle = np.zeros(len(blocking), np.int64)
    if not len(blocking):
        return idle
    gaps = gaps_of_device(trace, device).gaps
    is_first = np.ones(len(blocking), np.bool_)
    is_first[1:] = (blocking.start_ns[1:] - blocking.end_ns[:-1] > _AT_ONCE_NS) | (np.diff(blocking.thread) != 0)
    group = np.cumsum(is_first) - 1
    start = blocking.start_ns[is_first]
    last = max(int(trace.device.end_ns.max()), int(blocking.end_ns.max()))
    until = np.maximum(np.append(start[1:], last), start)
    of_group = gaps.measure_within(start, until)
    for number in range(len(start)):
        members = np.flatnonzero(group == number)
        idle[members[int(blocking.duration_ns[members].argmax())]] = of_group[number]
    return idle


def _name_callers(trace: Trace, blocking: HostSpans) -> list[tuple[str, str]]:
    """For each call the outermost operator that may wait, and the innermost function of the script, around it."""
    is_function = np.array([_SCRIPT in name for name in trace.names], np.bool_)[trace.callers.name]
    operators, functions = trace.callers.take(~is_function), trace.callers.take(is_function)

    def around(spans: HostSpans, moment: int, thread: int, place: int) -> str:
        rows = np.flatnonzero((spans.start_ns <= moment) & (spans.end_ns > moment) & (spans.thread == thread))
        return trace.names[spans.name[rows[place]]] if len(rows) else ""

    return [
        (around(operators, start, thread, 0), around(functions, start, thread, -1))
        for start, thread in zip(blocking.start_ns.tolist(), blocking.thread.tolist(), strict=True)
    ]
