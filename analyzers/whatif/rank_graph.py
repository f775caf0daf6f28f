"""The execution graph of one rank: what its host did in order, what its device ran, and what waited for what.

The host is one sequence of calls into the device's runtime. PyTorch's main thread stands still while the backward
thread works. So the calls of all threads that give the device work are taken in the order of their start. The device is
a sequence of events a stream. Between them are launches, waits of a stream for events on other streams, and calls in
which the host waits for the device.

A trace does not state which event a wait is for; it is inferred:

- The next event after a wait of a stream waits for the last earlier launch on every other stream. Events that ended
  after it began are left out.
- A call that waits for the device waits for the events launched before it that ended before it did.
- A launch waits where the queue of the device is full: for the event whose end freed a place in it.

Several threads may use a stream: a call may then wait for an event after one whose launch began later. Calls are
replayed in the order of their start, so this wait is left out, and the call takes as long as it did.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from perfscope.analyzers.collectives.calls import GroupCalls, calls_by_group, rows_by_group
from perfscope.measures.marked_steps import step_number, step_numbers
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.intervals import covered
from perfscope.tables.trace import ABSENT, KERNEL_LAUNCH, Int8, Int32, Trace, Work, distinct, span_at

_STREAM_WAITS = re.compile(r"^(?:cuda|cu|hip)StreamWaitEvent$")
_SYNCHRONIZES = re.compile(r"^(?:cuda|cu|hip)(?:Device|Stream|Event|Ctx)Synchronize$")
_COPIES = re.compile(r"^(?:cuda|hip)Memcpy(?:Async|WithStream)?$")
#: An event that begins this much before another one's end may still have waited for it: the clock of the device is read
#: at slightly different moments.
_CLOCK_TOLERANCE_NS = 500
#: A launch with so many others ahead of the device waits for a place in the queue.
_FEWEST_IN_FULL_QUEUE = 900


class RankGraph(Struct, frozen=True, eq=False):
    """One rank's execution graph, with measured times on its own clock, in nanoseconds.

    Attributes:
        base_ns: What its clock is behind the wall clock.
        call_start_ns, call_end_ns: The calls of the host, in program order.
        data_wait_ns: For each call the time before it, since the call before it, in which the host waited for data.
        name: For each device event an index into ``names``; events are in the order of their stream, then their start.
        launch: For each the call that launched it, or ABSENT for one that was launched before the trace.
        step: For each the number of its marked step, or ABSENT.
        wait_source, wait_target: Pairs of events of which the second waited for the first, on another stream.
        host_call, host_event: Pairs of a call and an event whose end it waited for.
        group_events: For each of ``groups`` the events of its operations, in their order.
        marks: The numbers of the marked steps that launched anything.
        main_thread: The thread that marked the steps; ABSENT where none is marked.
        lost_events: Launches of kernels in marked steps whose kernel is not in the trace.
    """

    path: str
    rank: int | None
    host: str
    base_ns: int
    names: tuple[str, ...]
    call_start_ns: Int64
    call_end_ns: Int64
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
    world_size: int | None = None
    lost_events: int = 0
    first_mark_ns: int | None = None

    @property
    def origin_ns(self) -> int:
        """When the host's program begins: with its first call, or the first marked step where that is earlier."""
        first = int(self.call_start_ns[0])
        return first if self.first_mark_ns is None else min(first, self.first_mark_ns)

    @property
    def duration_ns(self) -> Int64:
        """How long each event ran."""
        return self.end_ns - self.start_ns

    @property
    def is_communication(self) -> Bool:
        """Which events communicate."""
        return np.asarray(self.work == Work.COMMUNICATION)


def build_rank_graph(trace: Trace, device: int) -> RankGraph | None:
    """Build the graph of one device of a trace; None where no event can be joined with its launch."""
    events = trace.device
    rows = np.flatnonzero(events.device == device)
    order = rows[np.lexsort((events.start_ns[rows], events.stream[rows]))]
    calls, is_wait, is_sync = _select_calls(trace, order)
    launched = trace.launch[order]
    if not len(calls) or not (launched != ABSENT).any():
        return None
    launch = np.where(launched == ABSENT, ABSENT, _positions(calls, len(trace.calls))[launched])
    start_ns, end_ns, stream = events.start_ns[order], events.end_ns[order], events.stream[order]
    last = _Launched(stream, launch, start_ns, end_ns)
    wait_source, wait_target = _find_stream_waits(np.flatnonzero(is_wait), last)
    host_call, host_event = _find_host_waits(trace, calls, is_wait, is_sync, last)
    groups = calls_by_group(
        trace, device, covered(events, rows[events.is_work(Work.COMPUTE, Work.FUSED)[rows]]), most_ends=len(rows)
    )
    row_of, by_group = _positions(order, len(events)), rows_by_group(trace, device)
    step = step_numbers(trace)[order]
    busy = set(distinct(step))
    numbers = [step_number(trace.names[name]) for name in trace.steps.name]
    return RankGraph(
        path=trace.path,
        rank=trace.rank,
        host=trace.host,
        base_ns=trace.base_ns,
        names=trace.names,
        call_start_ns=trace.calls.start_ns[calls],
        call_end_ns=trace.calls.end_ns[calls],
        call_thread=trace.calls.thread[calls],
        data_wait_ns=_data_waits(trace, trace.calls.start_ns[calls]),
        name=events.name[order],
        work=events.work[order],
        start_ns=start_ns,
        end_ns=end_ns,
        stream=stream,
        launch=launch,
        step=step,
        wait_source=wait_source,
        wait_target=wait_target,
        host_call=host_call,
        host_event=host_event,
        groups=groups,
        group_events=tuple(row_of[by_group[group.key]] for group in groups),
        marks=tuple(number for number in numbers if number in busy),  # a profiler stops in a step that it began
        main_thread=int(trace.steps.thread[0]) if len(trace.steps) else ABSENT,
        world_size=trace.world_size,
        lost_events=_count_lost(trace),
        first_mark_ns=int(trace.steps.start_ns[0]) if len(trace.steps) else None,
    )


def _positions(rows: Int64, count: int) -> Int64:
    position = np.full(count, ABSENT, np.int64)
    position[rows] = np.arange(len(rows))
    return position


def _count_lost(trace: Trace) -> int:
    launches = trace.called(KERNEL_LAUNCH)
    launches[trace.launch[trace.launch != ABSENT]] = False
    return int((span_at(trace.steps, trace.calls.start_ns[launches]) != ABSENT).sum())


def _select_calls(trace: Trace, events: Int64) -> tuple[Int64, Bool, Bool]:
    calls, launch = trace.calls, trace.launch[events]
    is_sync, is_wait = trace.called(_SYNCHRONIZES), trace.called(_STREAM_WAITS)
    is_busy = is_sync.copy()
    is_busy[launch[launch != ABSENT]] = True
    rows = np.flatnonzero(is_busy | (is_wait & np.isin(calls.thread, distinct(calls.thread[is_busy]))))
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    return rows, is_wait[rows], is_sync[rows]


def _data_waits(trace: Trace, call_start_ns: Int64) -> Int64:
    loading = trace.annotated("enumerate(DataLoader)")
    waits_ns = np.zeros(len(call_start_ns), np.int64)
    after = np.searchsorted(call_start_ns, loading.end_ns)
    is_inside = after < len(call_start_ns)
    np.add.at(waits_ns, after[is_inside], loading.duration_ns[is_inside])
    return waits_ns


class _Launched:
    def __init__(self, stream: Int64, launch: Int64, start_ns: Int64, end_ns: Int64) -> None:
        self.stream, self.launch, self.start_ns, self.end_ns = stream, launch, start_ns, end_ns
        edges = (np.flatnonzero(np.diff(stream)) + 1).tolist()
        self._first = [0, *edges]
        # Events are launched in the order of their start; an inversion by the clock must not break the search.
        self._launched = [np.maximum.accumulate(part) for part in np.split(launch, edges)]

    def before(self, calls: Int64) -> list[Int64]:
        counts = [np.searchsorted(launched, calls) for launched in self._launched]
        return [
            np.where(count > 0, first + count - 1, ABSENT) for first, count in zip(self._first, counts, strict=True)
        ]

    def in_order(self, call: Int64, event: Int64) -> tuple[Int64, Int64]:
        is_in_order = np.concatenate(self._launched)[event] <= call
        return call[is_in_order], event[is_in_order]


def _find_stream_waits(waits: Int64, last: _Launched) -> tuple[Int64, Int64]:
    """Pairs of events on different streams of which the second waited for the first; ``waits`` are calls."""
    launched = np.flatnonzero(last.launch != ABSENT)
    by_launch = launched[np.argsort(last.launch[launched], kind="stable")]
    index = np.searchsorted(last.launch[by_launch], waits)
    waits, index = waits[index < len(by_launch)], index[index < len(by_launch)]
    order = np.argsort(by_launch[index], kind="stable")
    target = by_launch[index][order]
    is_first = np.diff(target, prepend=ABSENT) != 0
    target, first = target[is_first], order[is_first]
    sources, targets = [], []
    for source in last.before(waits[first]):
        is_wait = (source != ABSENT) & (last.stream[source] != last.stream[target])
        is_wait &= last.end_ns[source] <= last.start_ns[target] + _CLOCK_TOLERANCE_NS
        sources.append(source[is_wait])
        targets.append(target[is_wait])
    return np.concatenate(sources), np.concatenate(targets)


def _find_host_waits(trace: Trace, calls: Int64, is_wait: Bool, is_sync: Bool, last: _Launched) -> tuple[Int64, Int64]:
    end_ns = trace.calls.end_ns[calls]
    pairs: list[tuple[Int64, Int64]] = []
    syncs = np.flatnonzero(is_sync)
    for source in last.before(syncs):
        has_ended = (source != ABSENT) & (last.end_ns[source] <= end_ns[syncs] + _CLOCK_TOLERANCE_NS)
        pairs.append((syncs[has_ended], source[has_ended]))
    events = np.flatnonzero(last.launch != ABSENT)
    launch = last.launch[events]
    is_copy = trace.called(_COPIES)[calls[launch]] & (last.end_ns[events] <= end_ns[launch])
    pairs.append((launch[is_copy], events[is_copy]))
    slow = np.flatnonzero(~is_wait & ~is_sync)
    ended = events[np.argsort(last.end_ns[events], kind="stable")]
    done = np.searchsorted(last.end_ns[ended], end_ns[slow], side="right")
    ahead = np.searchsorted(np.sort(launch), slow, side="right") - done
    is_full = (ahead >= _FEWEST_IN_FULL_QUEUE) & (done > 0)
    pairs.append((slow[is_full], ended[done[is_full] - 1]))
    return last.in_order(np.concatenate([call for call, _ in pairs]), np.concatenate([event for _, event in pairs]))
