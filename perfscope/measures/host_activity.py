"""What a thread of the host did at each moment, as far as a trace shows it.

A moment belongs to the first of these that holds:

- *data loading*: a data loader is fetching, on any thread.
- *synchronisation*: the thread is in a call that waits for the device: it ends when the device has caught up, so that
  what comes after it is something else.
- *CUDA call*: it is in another call of the CUDA runtime or driver: a launch, an allocation, a module that is loaded.
- *operator*: it is inside an operator of the framework.
- *between operators*: none of these, for less than a millisecond: Python between two operators.
- *not shown*: none of these for a millisecond or more: Python, a sleep, reading of data, another process.

A trace without operators cannot tell the last three apart: that time is *host launch*.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from perfscope.constants import NS_PER_MS
from perfscope.measures.parts import HOST_CAUSES
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.intervals import Intervals, union
from perfscope.tables.trace import Trace, distinct

#: A pause of a thread that is shorter is Python between two operators.
PAUSE_NS = NS_PER_MS
_WAITS_FOR_DEVICE = re.compile(r"^(?:cuda|cu|hip|ur)\w*(?:Synchronize|Wait)(?:_v\d+)?$|^(?:cuda|hip)Memcpy(?!\w*Async)")
_NEVER_BLOCKS = re.compile(r"StreamWait")
_LOADS_DATA = re.compile(r"DataLoader", re.IGNORECASE)
_LATEST = np.iinfo(np.int64).max // 2


class _Thread(Struct, frozen=True, eq=False):
    """The states of one thread, each without the ones before it, but for what is seen of it at all."""

    synchronises: Intervals
    calls: Intervals
    seen: Intervals
    pauses: Intervals


class HostActivity:
    """What the threads that launch work did.

    Args:
        trace: The trace; its annotations, calls and the times of its operators are used.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        loads = trace.named(_LOADS_DATA)[trace.annotations.name]
        self._loading = union(trace.annotations.start_ns[loads], trace.annotations.end_ns[loads])
        self._waits = waits_for_device(trace)
        self._states: dict[int, _Thread] = {}

    @property
    def has_operators(self) -> bool:
        """Whether the trace shows operators."""
        return self._trace.in_operators is not None and len(self._trace.in_operators) > 0

    def split(self, start: Int64, end: Int64, thread: Int64) -> Int64:
        """Split intervals by what a thread did in each.

        Returns:
            Nanoseconds: one row for each of HOST_CAUSES, one column an interval; each column adds up to its interval.
        """
        parts = np.zeros((len(HOST_CAUSES), len(start)), np.int64)
        for number in distinct(thread):
            rows = np.flatnonzero(thread == number)
            parts[:, rows] = self._split(start[rows], end[rows], number)
        return parts

    def _split(self, start: Int64, end: Int64, thread: int) -> Int64:
        state = self._state(thread)

        def within(intervals: Intervals) -> Int64:
            return intervals.measure_within(start, end)

        loading, waiting, calling = within(self._loading), within(state.synchronises), within(state.calls)
        seen = within(state.seen)
        operating = seen - loading - waiting - calling
        unseen = end - start - seen
        if not self.has_operators:
            nothing = np.zeros(len(start), np.int64)
            return np.stack([loading, waiting, calling, operating, nothing, nothing, unseen])
        pausing = within(state.pauses)
        return np.stack([loading, waiting, calling, operating, unseen - pausing, pausing, np.zeros_like(unseen)])

    def _state(self, thread: int) -> _Thread:
        if thread not in self._states:
            rows = self._trace.calls.thread == thread
            synchronises = self._calls(rows & self._waits) - self._loading
            before = self._loading | synchronises
            calls = self._calls(rows & ~self._waits) - before
            seen = self._operators(thread) | calls | before
            self._states[thread] = _Thread(synchronises, calls, seen, _pauses(seen))
        return self._states[thread]

    def _calls(self, rows: Bool) -> Intervals:
        return union(self._trace.calls.start_ns[rows], self._trace.calls.end_ns[rows])

    def _operators(self, thread: int) -> Intervals:
        spans = self._trace.in_operators
        if spans is None:
            return Intervals()
        rows = spans.thread == thread
        return Intervals(spans.start_ns[rows], spans.end_ns[rows])


def waits_for_device(trace: Trace) -> Bool:
    """Which calls of a trace wait for the device."""
    return trace.called(_WAITS_FOR_DEVICE) & ~trace.called(_NEVER_BLOCKS)


def _pauses(seen: Intervals) -> Intervals:
    """The stretches of a pause's length or more between what is seen, that before and that behind it included."""
    pauses = seen.gaps(-_LATEST, _LATEST)
    is_long = pauses.end - pauses.start >= PAUSE_NS
    return Intervals(pauses.start[is_long], pauses.end[is_long])
