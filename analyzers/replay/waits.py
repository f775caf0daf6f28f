"""What waits for what in one rank: streams for each other's events, and the host for events.

Where the profiler recorded it (``enable_cuda_sync_events``), a wait names the call that recorded its event: it waits
for what was launched on that stream before. Elsewhere a trace does not state which event a wait is for; it is inferred:

- Before a wait of a stream comes the record of an event. The next event that is launched after the wait waits for the
  last events that were launched before it on every other stream, those left out that ended after it began.
- A call that waits for the device waits for the events launched before it that ended before it did.
- A launch waits where the queue of the device is full: for the event whose end freed a place in it.

Where several threads use a stream, a call may wait for an event behind one whose launch began later: its own launch was
held up. Calls are replayed in the order of their start, so such a wait is left out: the call takes as long as it did.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np

from perfscope.constants import NS_PER_US
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Int8, Trace

STREAM_WAIT_CALLS = frozenset(("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent"))
_DEVICE_SYNCS = frozenset(("cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize"))
_STREAM_SYNCS = frozenset(("cudaStreamSynchronize", "hipStreamSynchronize", "cuStreamSynchronize"))
_EVENT_SYNCS = frozenset(("cudaEventSynchronize", "hipEventSynchronize", "cuEventSynchronize"))
SYNCHRONIZING_CALLS = _DEVICE_SYNCS | _STREAM_SYNCS | _EVENT_SYNCS
_COPIES = frozenset(("cudaMemcpy", "cudaMemcpyAsync", "hipMemcpy", "hipMemcpyAsync", "hipMemcpyWithStream"))

#: An event that begins this much before another one's end may still have waited for it: the clock of the device is read
#: at slightly different moments.
_CLOCK_TOLERANCE_NS = 500
#: A call that waited returns within this time of the end of what it waited for.
_LONGEST_RETURN_NS = 200 * NS_PER_US
#: A launch that takes longer, with so many others ahead of the device, waited for a place in the queue.
_SHORTEST_QUEUE_WAIT_NS = 30 * NS_PER_US
_FEWEST_IN_FULL_QUEUE = 900


class CallKind(IntEnum):
    """What a call of the host does."""

    LAUNCH = 0
    STREAM_WAIT = 1
    SYNCHRONIZE = 2


#: Pairs in two columns.
Pairs: TypeAlias = tuple[Int64, Int64]


def is_named(trace: Trace, names: frozenset[str]) -> Bool:
    """Which calls of a trace have one of these names."""
    chosen = np.array([name in names for name in trace.names], np.bool_)
    return chosen[trace.calls.name]


def find_waits(trace: Trace, calls: Int64, kind: Int8, last: LastLaunched) -> tuple[Pairs, Pairs]:
    """What waits for what.

    Args:
        trace: The trace.
        calls: The rows of ``trace.calls`` that make up the host's program.
        kind: For each of them a value of CallKind.
        last: The events of the device.

    Returns:
        Pairs of events on different streams of which the second waited for the first; pairs of a call and an event
        whose end it waited for.
    """
    if trace.waits is None or not len(trace.waits):
        return _infer_stream_waits(kind, last), last.in_order(_infer_host_waits(trace, calls, kind, last))
    stated = _StatedWaits(trace, calls, last)
    other = np.where(stated.is_stated, CallKind.LAUNCH, kind).astype(np.int8)
    return (
        _join(stated.stream_waits(), _infer_stream_waits(other, last)),
        last.in_order(_join(stated.host_waits(), _infer_host_waits(trace, calls, other, last))),
    )


def _join(first: Pairs, second: Pairs) -> Pairs:
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])


class _StatedWaits:
    """The waits that the profiler recorded.

    Attributes:
        is_stated: Which calls of the host's program wait, or let a stream wait, for an event that the trace states.
    """

    def __init__(self, trace: Trace, calls: Int64, last: LastLaunched) -> None:
        assert trace.waits is not None
        waits, self._last = trace.waits, last
        call_start_ns = trace.calls.start_ns[calls]
        moments = {
            correlation: moment
            for correlation, moment in zip(trace.calls.correlation.tolist(), trace.calls.start_ns.tolist(), strict=True)
            if correlation != ABSENT
        }
        rows = [
            row
            for row, (own, record) in enumerate(
                zip(waits.correlation.tolist(), waits.record_correlation.tolist(), strict=True)
            )
            if own in moments and record in moments
        ]
        self._stream, self._record_stream = waits.stream[rows], waits.record_stream[rows]
        own_ns = np.array([moments[int(waits.correlation[row])] for row in rows], np.int64)
        record_ns = np.array([moments[int(waits.record_correlation[row])] for row in rows], np.int64)
        #: Positions in the program: the first call at or behind each moment.
        self._call = np.searchsorted(call_start_ns, own_ns)
        self._record = np.searchsorted(call_start_ns, record_ns)
        self.is_stated = np.zeros(len(calls), np.bool_)
        self.is_stated[self._call[self._call < len(calls)]] = True

    def stream_waits(self) -> Pairs:
        """What the next event of a waiting stream waited for: the last one before the recorded event."""
        sources, targets = [], []
        for stream, call, recorded, record in self._rows(is_host=False):
            source, target = self._last.before_on(recorded, record), self._last.after_on(stream, call)
            if ABSENT not in (source, target) and recorded != stream and self._last.is_before(source, target):
                sources.append(source)
                targets.append(target)
        return np.array(sources, np.int64), np.array(targets, np.int64)

    def host_waits(self) -> Pairs:
        """Calls of the host, and the last event before the recorded one."""
        pairs = [
            (call, source)
            for _, call, recorded, record in self._rows(is_host=True)
            if (source := self._last.before_on(recorded, record)) != ABSENT and call < len(self.is_stated)
        ]
        return np.array([call for call, _ in pairs], np.int64), np.array([event for _, event in pairs], np.int64)

    def _rows(self, *, is_host: bool) -> list[tuple[int, int, int, int]]:
        chosen = (self._stream == ABSENT) == is_host
        columns = (self._stream, self._call, self._record_stream, self._record)
        return list(zip(*(column[chosen].tolist() for column in columns), strict=True))


class LastLaunched:
    """For each moment of the host's program the last event that was launched on each stream.

    Attributes:
        launch, start_ns, end_ns: Columns of the events, by stream and start.
        bounds: For each stream its first event and the one behind its last.
    """

    def __init__(self, stream: Int64, launch: Int64, start_ns: Int64, end_ns: Int64) -> None:
        self.launch, self.start_ns, self.end_ns, self.stream = launch, start_ns, end_ns, stream
        edges = np.flatnonzero(np.diff(stream)) + 1
        first = [0, *edges.tolist()] if len(stream) else []
        self.bounds = tuple(zip(first, [*first[1:], len(stream)], strict=True))
        # Events are launched in the order of their start; an inversion by the clock must not break the search.
        self.launched_by = [np.maximum.accumulate(launch[begin:end]) for begin, end in self.bounds]
        self._of_stream = {
            int(stream[begin]): (begin, launched)
            for (begin, _), launched in zip(self.bounds, self.launched_by, strict=True)
        }

    def before_on(self, stream: int, call: int) -> int:
        """The last event launched on a stream before a call, or ABSENT."""
        begin, launched = self._of_stream.get(stream, (0, self.launch[:0]))
        count = int(np.searchsorted(launched, call))
        return begin + count - 1 if count else ABSENT

    def after_on(self, stream: int, call: int) -> int:
        """The first event launched on a stream behind a call, or ABSENT."""
        begin, launched = self._of_stream.get(stream, (0, self.launch[:0]))
        count = int(np.searchsorted(launched, call, side="right"))
        return begin + count if count < len(launched) else ABSENT

    def is_before(self, source: int, target: int) -> bool:
        """Whether an event may have waited for another one, by their measured times."""
        return bool(self.end_ns[source] <= self.start_ns[target] + _CLOCK_TOLERANCE_NS)

    def in_order(self, host_waits: Pairs) -> Pairs:
        """The pairs of a call and an event of which nothing up to the event was launched behind the call."""
        call, event = host_waits
        latest = np.concatenate([*self.launched_by, self.launch[:0]])
        is_in_order = latest[event] <= call
        return call[is_in_order], event[is_in_order]

    def before(self, calls: Int64) -> list[Int64]:
        """For each stream the last event launched before each of these calls, or ABSENT."""
        found = []
        for (begin, _), launched in zip(self.bounds, self.launched_by, strict=True):
            count = np.searchsorted(launched, calls)
            found.append(np.where(count > 0, begin + count - 1, ABSENT))
        return found


def _infer_stream_waits(kind: Int8, last: LastLaunched) -> tuple[Int64, Int64]:
    """Pairs of events on different streams of which the second waited for the first."""
    waits = np.flatnonzero(kind == CallKind.STREAM_WAIT)
    launched = np.flatnonzero(last.launch != ABSENT)
    if not len(waits) or not len(launched):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    by_launch = launched[np.argsort(last.launch[launched], kind="stable")]
    index = np.searchsorted(last.launch[by_launch], waits)
    waits, index = waits[index < len(by_launch)], index[index < len(by_launch)]
    order = np.argsort(by_launch[index], kind="stable")
    target = by_launch[index][order]
    is_first = np.ones(len(target), np.bool_)
    is_first[1:] = target[1:] != target[:-1]
    target, first = target[is_first], order[is_first]
    sources, targets = [], []
    for source in last.before(waits[first]):
        is_wait = (source != ABSENT) & (last.stream[source] != last.stream[target])
        is_wait &= last.end_ns[source] <= last.start_ns[target] + _CLOCK_TOLERANCE_NS
        sources.append(source[is_wait])
        targets.append(target[is_wait])
    return np.concatenate(sources), np.concatenate(targets)


def _infer_host_waits(trace: Trace, calls: Int64, kind: Int8, last: LastLaunched) -> tuple[Int64, Int64]:
    """Pairs of a call and an event whose end it waited for."""
    end_ns = trace.calls.end_ns[calls]
    pairs: list[tuple[Int64, Int64]] = []
    syncs = np.flatnonzero(kind == CallKind.SYNCHRONIZE)
    for source in last.before(syncs):
        is_wait = (source != ABSENT) & (last.end_ns[source] <= end_ns[syncs] + _CLOCK_TOLERANCE_NS)
        pairs.append((syncs[is_wait], source[is_wait]))
    events = np.flatnonzero(last.launch != ABSENT)
    launch = last.launch[events]
    is_copy = is_named(trace, _COPIES)[calls[launch]] & (last.end_ns[events] <= end_ns[launch])
    pairs.append((launch[is_copy], events[is_copy]))
    pairs.append(_find_full_queues(trace, calls, kind, last))
    return np.concatenate([call for call, _ in pairs]), np.concatenate([event for _, event in pairs])


def _find_full_queues(trace: Trace, calls: Int64, kind: Int8, last: LastLaunched) -> tuple[Int64, Int64]:
    """Launches that waited for a place in the queue of the device, and the events whose end gave it to them."""
    start_ns, end_ns = trace.calls.start_ns[calls], trace.calls.end_ns[calls]
    events = np.flatnonzero(last.launch != ABSENT)
    slow = np.flatnonzero((kind == CallKind.LAUNCH) & (end_ns - start_ns >= _SHORTEST_QUEUE_WAIT_NS))
    ended = events[np.argsort(last.end_ns[events], kind="stable")]
    done = np.searchsorted(last.end_ns[ended], end_ns[slow], side="right")
    launched = np.searchsorted(np.sort(last.launch[events]), slow, side="right")
    is_full = (launched - done >= _FEWEST_IN_FULL_QUEUE) & (done > 0)
    slow, freed = slow[is_full], ended[done[is_full] - 1]
    is_wait = end_ns[slow] - last.end_ns[freed] <= _LONGEST_RETURN_NS
    return slow[is_wait], freed[is_wait]
