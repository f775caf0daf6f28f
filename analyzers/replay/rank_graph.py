"""The execution graph of one rank: what its host did in order, what its device ran, and what waited for what.

The host is one sequence of calls into the device's runtime: PyTorch's main thread stands still while autograd's thread
works, so calls of all threads that give the device work are taken in the order of their start. The device is a sequence
of events a stream. Between them are launches, waits of a stream for events on other streams, and calls in which the
host waits for the device. A trace does not state which event a stream or a call waits for; it is inferred:

- Before a wait of a stream comes the record of an event. The next event that is launched after the wait waits for the
  last events that were launched before it on every other stream, those left out that ended after it began.
- A call that waits for the device waits for the events launched before it that ended before it did.
- A launch waits where the queue of the device is full: for the event whose end freed a place in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from perfscope.analyzers.communication.calls import GroupCalls, calls_by_group, rows_by_group
from perfscope.analyzers.replay.blocks import count_blocks
from perfscope.analyzers.shared.intervals import covered
from perfscope.analyzers.shared.marked_steps import step_numbers
from perfscope.constants import NS_PER_US
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Int8, Int32, Trace, Work

_STREAM_WAITS = frozenset(("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent"))
_DEVICE_SYNCS = frozenset(("cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize"))
_STREAM_SYNCS = frozenset(("cudaStreamSynchronize", "hipStreamSynchronize", "cuStreamSynchronize"))
_EVENT_SYNCS = frozenset(("cudaEventSynchronize", "hipEventSynchronize", "cuEventSynchronize"))
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


@dataclass(frozen=True, slots=True, eq=False)
class RankGraph:
    """One rank's execution graph, with measured times on its own clock, in nanoseconds.

    Attributes:
        path: The trace.
        rank: Its rank; absent where nothing states it.
        host: The machine; ``""`` where not stated.
        base_ns: What its clock is behind the wall clock.
        names: Every distinct name of an event.
        call_start_ns, call_end_ns: The calls of the host, in program order.
        call_kind: For each call a value of CallKind.
        call_thread: For each call its thread.
        data_wait_ns: For each call the time before it, since the call before it, in which the host waited for data.
        name: For each device event an index into ``names``; events are in the order of their stream, then their start.
        work: For each a value of Work.
        start_ns, end_ns: For each when it ran.
        stream: For each its stream.
        launch: For each the call that launched it, or ABSENT for one that was launched before the trace.
        step: For each the number of its marked step, or ABSENT.
        wait_source, wait_target: Pairs of events of which the second waited for the first, on another stream.
        host_call, host_event: Pairs of a call and an event whose end it waited for.
        groups: The communication operations by group.
        group_events: For each of ``groups`` the events of its operations, in their order.
        marks: The numbers of the marked steps.
        main_thread: The thread that marked the steps; ABSENT where none is marked.
        blocks: For each event the blocks of its grid, as ``count_blocks`` gives them; empty where not known.
        processors: Multiprocessors of the device; 0 where not stated.
    """

    path: str
    rank: int | None
    host: str
    base_ns: int
    names: tuple[str, ...]
    call_start_ns: Int64
    call_end_ns: Int64
    call_kind: Int8
    call_thread: Int64
    data_wait_ns: Int64
    name: Int32
    work: Int8
    start_ns: Int64
    end_ns: Int64
    stream: Int64
    launch: Int64
    step: Int64
    wait_source: Int64
    wait_target: Int64
    host_call: Int64
    host_event: Int64
    groups: tuple[GroupCalls, ...]
    group_events: tuple[Int64, ...]
    marks: tuple[int, ...]
    main_thread: int = ABSENT
    blocks: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    processors: int = 0

    @property
    def duration_ns(self) -> Int64:
        """How long each event ran."""
        return self.end_ns - self.start_ns


def build_rank_graph(trace: Trace, device: int) -> RankGraph | None:
    """Build the graph of one device of a trace; None where no event can be joined with its launch."""
    events = trace.device
    rows = np.flatnonzero(events.device == device)
    order = rows[np.lexsort((events.start_ns[rows], events.stream[rows]))]
    calls, kind = _select_calls(trace, order)
    if not len(calls) or not (trace.launch[order] != ABSENT).any():
        return None
    position = np.full(len(trace.calls), ABSENT, np.int64)
    position[calls] = np.arange(len(calls))
    launched = trace.launch[order]
    launch = np.where(launched == ABSENT, ABSENT, position[launched])
    start_ns, end_ns, stream = events.start_ns[order], events.end_ns[order], events.stream[order]
    call_start_ns, call_end_ns = trace.calls.start_ns[calls], trace.calls.end_ns[calls]
    last_launched = _LastLaunched(stream, launch, start_ns, end_ns)
    wait_source, wait_target = _infer_stream_waits(kind, last_launched)
    host_call, host_event = _infer_host_waits(trace, calls, kind, last_launched)
    row_of = np.full(len(events), ABSENT, np.int64)
    row_of[order] = np.arange(len(order))
    compute = covered(events, rows[events.is_work(Work.COMPUTE, Work.FUSED)[rows]])
    groups = calls_by_group(trace, device, compute, most_ends=len(rows))
    by_group = rows_by_group(trace, device)
    return RankGraph(
        path=trace.path,
        rank=trace.rank,
        host=trace.host,
        base_ns=trace.base_ns,
        names=trace.names,
        call_start_ns=call_start_ns,
        call_end_ns=call_end_ns,
        call_kind=kind,
        call_thread=trace.calls.thread[calls],
        data_wait_ns=_data_waits(trace, call_start_ns),
        name=events.name[order],
        work=events.work[order],
        start_ns=start_ns,
        end_ns=end_ns,
        stream=stream,
        launch=launch,
        step=step_numbers(trace)[order],
        wait_source=wait_source,
        wait_target=wait_target,
        host_call=host_call,
        host_event=host_event,
        groups=groups,
        group_events=tuple(row_of[by_group[group.key]] for group in groups),
        marks=tuple(int(trace.names[name].partition("#")[2]) for name in trace.steps.name),
        main_thread=int(trace.steps.thread[0]) if len(trace.steps) else ABSENT,
        blocks=count_blocks(events.grid[order]),
        processors=trace.processors,
    )


def _select_calls(trace: Trace, events: Int64) -> tuple[Int64, Int8]:
    """The calls that launch, that let a stream wait, or that wait, in program order; and what each does."""
    calls = trace.calls
    is_launch = np.zeros(len(calls), np.bool_)
    launch = trace.launch[events]
    is_launch[launch[launch != ABSENT]] = True
    is_sync = _is_named(trace, _DEVICE_SYNCS | _STREAM_SYNCS | _EVENT_SYNCS)
    is_wait = _is_named(trace, _STREAM_WAITS)
    threads = np.unique(calls.thread[is_launch | is_sync])
    rows = np.flatnonzero((is_launch | is_sync | is_wait) & np.isin(calls.thread, threads))
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    kind = np.full(len(rows), CallKind.LAUNCH, np.int8)
    kind[is_wait[rows]] = CallKind.STREAM_WAIT
    kind[is_sync[rows]] = CallKind.SYNCHRONIZE
    return rows, kind


def _is_named(trace: Trace, names: frozenset[str]) -> Bool:
    """Which calls have one of these names."""
    chosen = np.array([name in names for name in trace.names], np.bool_)
    return chosen[trace.calls.name]


class _LastLaunched:
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

    def before(self, calls: Int64) -> list[Int64]:
        """For each stream the last event launched before each of these calls, or ABSENT."""
        found = []
        for (begin, _), launched in zip(self.bounds, self.launched_by, strict=True):
            count = np.searchsorted(launched, calls)
            found.append(np.where(count > 0, begin + count - 1, ABSENT))
        return found


def _infer_stream_waits(kind: Int8, last: _LastLaunched) -> tuple[Int64, Int64]:
    """Pairs of events on different streams of which the second waited for the first."""
    waits = np.flatnonzero(kind == CallKind.STREAM_WAIT)
    launched = np.flatnonzero(last.launch != ABSENT)
    if not len(waits) or not len(launched):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    by_launch = launched[np.argsort(last.launch[launched], kind="stable")]
    index = np.searchsorted(last.launch[by_launch], waits)
    waits, index = waits[index < len(by_launch)], index[index < len(by_launch)]
    target, first = np.unique(by_launch[index], return_index=True)
    sources, targets = [], []
    for source in last.before(waits[first]):
        is_wait = (source != ABSENT) & (last.stream[source] != last.stream[target])
        is_wait &= last.end_ns[source] <= last.start_ns[target] + _CLOCK_TOLERANCE_NS
        sources.append(source[is_wait])
        targets.append(target[is_wait])
    return np.concatenate(sources), np.concatenate(targets)


def _infer_host_waits(trace: Trace, calls: Int64, kind: Int8, last: _LastLaunched) -> tuple[Int64, Int64]:
    """Pairs of a call and an event whose end it waited for."""
    end_ns = trace.calls.end_ns[calls]
    pairs: list[tuple[Int64, Int64]] = []
    syncs = np.flatnonzero(kind == CallKind.SYNCHRONIZE)
    for source in last.before(syncs):
        is_wait = (source != ABSENT) & (last.end_ns[source] <= end_ns[syncs] + _CLOCK_TOLERANCE_NS)
        pairs.append((syncs[is_wait], source[is_wait]))
    events = np.flatnonzero(last.launch != ABSENT)
    launch = last.launch[events]
    is_copy = _is_named(trace, _COPIES)[calls[launch]] & (last.end_ns[events] <= end_ns[launch])
    pairs.append((launch[is_copy], events[is_copy]))
    pairs.append(_find_full_queues(trace, calls, kind, last))
    return np.concatenate([call for call, _ in pairs]), np.concatenate([event for _, event in pairs])


def _find_full_queues(trace: Trace, calls: Int64, kind: Int8, last: _LastLaunched) -> tuple[Int64, Int64]:
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


def _data_waits(trace: Trace, call_start_ns: Int64) -> Int64:
    """For each call the time, since the call before it began, in which the host waited for the data loader."""
    loading = trace.annotated("enumerate(DataLoader)")
    waits_ns = np.zeros(len(call_start_ns), np.int64)
    if len(loading):
        after = np.searchsorted(call_start_ns, loading.end_ns)
        is_inside = after < len(call_start_ns)
        np.add.at(waits_ns, after[is_inside], loading.duration_ns[is_inside])
    return waits_ns
