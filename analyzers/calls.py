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

import numpy as np
from msgspec import Struct

from perfscope.analyzers.shared.host_activity import names_with, waits_for_device
from perfscope.analyzers.shared.idle_gaps import gaps_of_device
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput, NoDevice
from perfscope.report import Column, Json, Section, long_table
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, HostSpans, Trace, distinct, span_at

SYNCHRONISATION, PAGEABLE, ALLOCATION = KINDS = "synchronisation", "pageable", "allocation"
_ALLOCATES = re.compile(r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostFree|MallocHost|FreeHost|MallocAsync)(?:_v\d+)?$")
_PAGEABLE = re.compile(r"Pageable -> Device")
_TO_PAGEABLE = re.compile(r"Device -> Pageable")
_MOST_ROWS = 20
#: The host does nothing else between two calls that are so near.
_AT_ONCE_NS = 20_000
_SCRIPT = ".py("


class Caller(Struct, frozen=True, array_like=True):
    """Calls of one kind by one caller, in nanoseconds over all marked steps.

    Attributes:
        kind: One of KINDS.
        operator: The operator that called; ``""`` where none did that the trace names.
        function: The function of the script, with file and line; ``""`` without stacks.
        calls: How many.
        blocked: How long they took.
        idle: Idle time from each call's beginning to the next one's.
    """

    kind: str
    operator: str
    function: str
    calls: int
    blocked: int
    idle: int

    @property
    def regained(self) -> int:
        """The idle time that the steps would not have without them."""
        return min(self.blocked, self.idle)

    def data(self, steps: int) -> dict[str, Json]:
        """One entry of ``callers``, of a mean step."""
        return {
            "kind": self.kind,
            "operator": self.operator or None,
            "function": self.function or None,
            "calls": self.calls / steps,
            "blocked_us": self.blocked / steps / NS_PER_US,
            "idle_us": self.idle / steps / NS_PER_US,
            "regained_us": self.regained / steps / NS_PER_US,
        }


class RankCalls(Struct, frozen=True, array_like=True):
    """The calls of one device of one rank.

    Attributes:
        rank: The rank; absent where nothing states it.
        device: Index of its GPU.
        steps: How many steps are marked.
        callers: What a step loses most by first.
        pageable_bytes: What is copied from memory that is not pinned, over all marked steps.
    """

    rank: int | None
    device: int
    steps: int
    callers: tuple[Caller, ...]
    pageable_bytes: int

    def data(self) -> dict[str, Json]:
        """One entry of ``results.calls.ranks``, of a mean step."""
        return {
            "rank": self.rank,
            "device": self.device,
            "steps": self.steps,
            **{kind: self._sums(kind) for kind in KINDS},
            "callers": [caller.data(self.steps) for caller in self.callers],
        }

    def _sums(self, kind: str) -> dict[str, Json]:
        members = [caller for caller in self.callers if caller.kind == kind]
        sums: dict[str, Json] = {
            "calls": sum(caller.calls for caller in members) / self.steps,
            "blocked_us": sum(caller.blocked for caller in members) / self.steps / NS_PER_US,
            "regained_us": min(sum(caller.blocked for caller in members), sum(caller.idle for caller in members))
            / self.steps
            / NS_PER_US,
        }
        return {**sums, "bytes": self.pageable_bytes / self.steps} if kind == PAGEABLE else sums


class Calls(Struct, frozen=True):
    """The calls of every rank that hold its host up."""

    ranks: Sequence[RankCalls]

    def data(self) -> Json:
        """The value of ``results.calls``."""
        return {"ranks": [item.data() for item in self.ranks]}

    def sections(self) -> tuple[Section, ...]:
        """A row a rank and caller."""
        columns = (
            Column("Rank"), Column("Kind"), Column("Operator"), Column("Function"), Column("Calls"),
            Column("Blocked (ms)", 3), Column("Lost (ms)", 3),
        )  # fmt: skip
        rows = tuple(
            (
                None if rank.rank is None else str(rank.rank),
                caller.kind,
                caller.operator or None,
                caller.function or None,
                caller.calls / rank.steps,
                caller.blocked / rank.steps / NS_PER_MS,
                caller.regained / rank.steps / NS_PER_MS,
            )
            for rank in self.ranks
            for caller in rank.callers
        )
        note = "Of a mean step. Lost: idle time behind the calls until the next one, at most as long as they blocked."
        return (long_table("Calls that hold the host up", columns, rows, (note,), most=_MOST_ROWS),)


def measure(trace: Trace) -> tuple[RankCalls, ...] | None:
    """The calls of each device of one trace; None where it marks no step with device events."""
    if not len(trace.device) or not len(trace.calls) or not len(trace.steps):
        return None
    return tuple(_measure_device(trace, device) for device in distinct(trace.device.device))


def analyze(partials: Sequence[tuple[RankCalls, ...]]) -> Calls:
    """Put the ranks in order.

    Raises:
        NoDevice: No trace holds device events in marked steps.
        MissingInput: No call holds a host up.
    """
    ranks = tuple(
        sorted(chain.from_iterable(partials), key=lambda rank: (rank.rank is None, rank.rank or 0, rank.device))
    )
    if not ranks:
        raise NoDevice("the traces contain no GPU events in marked steps")
    if not any(rank.callers for rank in ranks):
        raise MissingInput("no call in the marked steps holds the host up")
    return Calls(ranks)


def _measure_device(trace: Trace, device: int) -> RankCalls:
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
        Caller(KINDS[kind], operator, function, *entry) for (kind, operator, function), entry in sums.items()
    ]
    return RankCalls(
        rank=trace.rank,
        device=device,
        steps=len(trace.steps),
        callers=tuple(
            sorted(callers_of_calls, key=lambda caller: (-caller.regained, -caller.blocked, caller.operator))
        ),
        pageable_bytes=int(copied[rows].sum()),
    )


def _kinds(trace: Trace, device: int) -> tuple[Int64, Int64]:
    """For each call the index of its kind in KINDS, or ABSENT, and the bytes that a pageable copy copies."""
    calls = trace.calls
    kinds = np.full(len(calls), ABSENT, np.int64)
    kinds[waits_for_device(trace)] = KINDS.index(SYNCHRONISATION)
    kinds[names_with(trace, _ALLOCATES)[calls.name]] = KINDS.index(ALLOCATION)
    is_of_device = (trace.device.device == device) & (trace.launch != ABSENT)
    # A copy into memory that is not pinned returns when it has ended.
    waits = names_with(trace, _TO_PAGEABLE)[trace.device.name] & is_of_device
    kinds[trace.launch[waits]] = KINDS.index(SYNCHRONISATION)
    is_copy = names_with(trace, _PAGEABLE)[trace.device.name] & is_of_device
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
    return [
        (_outermost(trace, operators, start, thread), _innermost(trace, functions, start, thread))
        for start, thread in zip(blocking.start_ns.tolist(), blocking.thread.tolist(), strict=True)
    ]


def _around(spans: HostSpans, moment: int, thread: int) -> Bool:
    """Which spans of a thread contain a moment."""
    return np.asarray((spans.start_ns <= moment) & (spans.end_ns > moment) & (spans.thread == thread))


def _outermost(trace: Trace, operators: HostSpans, moment: int, thread: int) -> str:
    rows = np.flatnonzero(_around(operators, moment, thread))
    return trace.names[operators.name[rows[0]]] if len(rows) else ""


def _innermost(trace: Trace, functions: HostSpans, moment: int, thread: int) -> str:
    rows = np.flatnonzero(_around(functions, moment, thread))
    return trace.names[functions.name[rows[-1]]] if len(rows) else ""
