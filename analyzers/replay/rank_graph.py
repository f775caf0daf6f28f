"""The execution graph of one rank: what its host did in order, what its device ran, and what waited for what.

The host is one sequence of calls into the device's runtime. PyTorch's main thread stands still while the backward
thread works. So the calls of all threads that give the device work are taken in the order of their start. The device is
a sequence of events a stream. Between them are launches, waits of a stream for events on other streams, and calls in
which the host waits for the device.

How much of the device a kernel can use while another one holds some of its multiprocessors.

A kernel of communication stays on a few multiprocessors from its start to its end (24 of 132 for NCCL on an H200).
Concurrent kernels have the others. A kernel whose blocks filled all multiprocessors once then needs a second round, and
takes up to twice its time. A kernel of many rounds takes longer by the lost share.

The operators and modules around each launch, those of a backward pass as well.

A launch of the backward pass is inside a node of autograd, which has the sequence number of the operator that made it.
It belongs to the modules and operators around this operator in the forward pass.

What waits for what in one rank: streams for each other's events, and the host for events.

Where the profiler recorded it (``enable_cuda_sync_events``), a wait names the call that recorded its event. It waits
for what was launched on that stream before. Elsewhere a trace does not state which event a wait is for; it is inferred:

- Before a wait of a stream comes the record of an event. The next event after the wait waits for the last earlier
  launch on every other stream. Events that ended after it began are left out.
- A call that waits for the device waits for the events launched before it that ended before it did.
- A launch waits where the queue of the device is full: for the event whose end freed a place in it.

Where several threads use a stream, a call may wait for an event after one whose launch began later. Calls are replayed
in the order of their start, so this wait is left out: the call takes as long as it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from typing import TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from perfscope.analyzers.communication.calls import GroupCalls, calls_by_group, rows_by_group
from perfscope.analyzers.pipelines.rank_passes import RankPasses
from perfscope.analyzers.shared.intervals import covered
from perfscope.analyzers.shared.marked_steps import step_numbers
from perfscope.constants import NS_PER_US
from perfscope.tables.columns import Bool, Float64, Int64
from perfscope.tables.trace import ABSENT, Int8, Int32, Trace, Work, distinct, span_at

#: A grid of more blocks than this runs in many rounds, whatever their number.
_MOST_COUNTED = 512
#: More rounds than this are as good as a continuous flow of blocks.
MANY_BLOCKS = _MOST_COUNTED + 1


def count_blocks(grid: Int64) -> Int64:
    """The blocks of each kernel from the checksum of its grid; MANY_BLOCKS for a large one, ABSENT without a grid."""
    sizes, inverse = np.unique(grid, return_inverse=True)
    known = _blocks_by_checksum()
    blocks = [ABSENT if size == ABSENT else known.get(size, MANY_BLOCKS) for size in sizes.tolist()]
    return np.asarray(blocks, np.int64)[inverse.reshape(-1)]


@cache
def _blocks_by_checksum() -> dict[int, int]:
    """The number of blocks of every small grid, by the checksum of its text."""
    known = {}
    for x in range(1, _MOST_COUNTED + 1):
        for y in range(1, _MOST_COUNTED // x + 1):
            for z in range(1, _MOST_COUNTED // (x * y) + 1):
                known[crc32(f"[{x},{y},{z}]".encode())] = x * y * z
    return known


def slowdown_beside(blocks: Int64, is_product: Bool, held: int, processors: int) -> Float64:
    """How much longer each kernel takes while another one holds some multiprocessors; 0.2 is a fifth.

    Args:
        blocks: For each kernel its blocks, as ``count_blocks`` gives them.
        is_product: Which of them multiply matrices: one block of these fills a multiprocessor.
        held: The multiprocessors that are not free.
        processors: All multiprocessors of the device.
    """
    free = max(processors - held, 1)
    flow = processors / free - 1
    rounds: npt.NDArray[np.float64] = np.ceil(blocks / free) / np.ceil(np.maximum(blocks, 1) / processors) - 1
    is_counted = is_product & (blocks != ABSENT) & (blocks < MANY_BLOCKS)
    fits = ~is_product & (blocks != ABSENT) & (blocks <= free)
    return np.where(is_counted, rounds, np.where(fits, 0.0, flow))


MODULE = "nn.Module: "
_NODE = "autograd::engine::evaluate_function: "


class _Paths(Struct):
    """Paths of names from the outermost range inwards, each once: a tree of names with numbers.

    Attributes:
        parents: For each path that of the range around it, or ABSENT.
        names: For each path the name of its innermost range.
    """

    parents: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def number(self, parent: int, name: int) -> int:
        """The path of a range of that name inside another path."""
        number = self._numbers.setdefault((parent, name), len(self.names))
        if number == len(self.names):
            self.parents.append(parent)
            self.names.append(name)
        return number

    def write(self, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The names of each path."""
        written: list[tuple[str, ...]] = []
        for parent, name in zip(self.parents, self.names, strict=True):
            written.append((*(written[parent] if parent != ABSENT else ()), names[name]))
        return tuple(written)


def find_stacks(trace: Trace, calls: Int64) -> tuple[tuple[tuple[str, ...], ...], Int64]:
    """The names around some calls.

    Args:
        trace: With its operators and their sequence numbers.
        calls: Rows of ``trace.calls``.

    Returns:
        Paths of names, and for each call the number of its path, or ABSENT.
    """
    is_module = np.array([name.startswith(MODULE) for name in trace.names], np.bool_)
    modules = trace.annotations.take(is_module[trace.annotations.name])
    sequence = np.full(len(trace.operators), ABSENT, np.int64) if trace.details is None else trace.details.sequence
    name = np.concatenate([trace.operators.name, modules.name])
    start_ns = np.concatenate([trace.operators.start_ns, modules.start_ns])
    end_ns = np.concatenate([trace.operators.end_ns, modules.end_ns])
    thread = np.concatenate([trace.operators.thread, modules.thread])
    sequence = np.concatenate([sequence, np.full(len(modules), ABSENT, np.int64)])
    is_node = np.array([text.startswith(_NODE) for text in trace.names], np.bool_)
    paths, forward, result = _Paths(), dict[int, int](), np.full(len(calls), ABSENT, np.int64)
    main = int(trace.steps.thread[0]) if len(trace.steps) else ABSENT
    threads = sorted(set(thread.tolist()), key=lambda number: (number != main, number))
    for number in threads:
        own = np.flatnonzero(thread == number)
        own = own[np.lexsort((-end_ns[own], start_ns[own]))]
        asked = np.flatnonzero(trace.calls.thread[calls] == number)
        asked = asked[np.argsort(trace.calls.start_ns[calls[asked]], kind="stable")]
        moments = trace.calls.start_ns[calls[asked]]
        columns = (start_ns[own], end_ns[own], name[own], sequence[own], is_node[name[own]])
        result[asked] = _walk(columns, moments, paths, forward)
    return paths.write(trace.names), result


def _walk(columns: Sequence[Int64], moments: Int64, paths: _Paths, forward: dict[int, int]) -> Int64:
    """The path around each moment of a thread; ``forward`` collects the last path of each sequence number."""
    result = np.full(len(moments), ABSENT, np.int64)
    open_ranges: list[tuple[int, int]] = []
    position = 0
    times = moments.tolist()
    for start, end, name, sequence, is_node in zip(*(column.tolist() for column in columns), strict=True):
        while position < len(times) and times[position] < start:
            result[position] = _innermost(open_ranges, times[position])
            position += 1
        around = _innermost(open_ranges, start)
        if is_node:
            around = forward.get(sequence, around)
        path = paths.number(around, name)
        if sequence != ABSENT and not is_node:
            forward[sequence] = path
        open_ranges.append((end, path))
    for index in range(position, len(times)):
        result[index] = _innermost(open_ranges, times[index])
    return result


def _innermost(open_ranges: list[tuple[int, int]], moment: int) -> int:
    """The path of the last range that is still open, after those that ended are forgotten."""
    while open_ranges and open_ranges[-1][0] <= moment:
        open_ranges.pop()
    return open_ranges[-1][1] if open_ranges else ABSENT


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


_KERNEL_LAUNCHES = frozenset(
    ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel")
)


class RankGraph(Struct, frozen=True, eq=False):
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
        marks: The numbers of the marked steps that launched anything.
        main_thread: The thread that marked the steps; ABSENT where none is marked.
        grid: For each event the checksum of its grid; empty where not known.
        processors: Multiprocessors of the device; 0 where not stated.
        stacks: Paths of operators and modules, outermost first; empty where operators were not read.
        stack: For each event the path around its launch, or ABSENT; empty likewise.
        passes: The passes of micro-batches; absent where the trace shows no pipeline.
        world_size: Ranks of the job; absent where nothing states it.
        lost_events: Launches of kernels in marked steps whose kernel is not in the trace.
        first_mark_ns: When the first marked step began; absent without marks.
        device_name: The GPU; ``""`` where the trace does not state one.
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
    grid: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    processors: int = 0
    stacks: tuple[tuple[str, ...], ...] = ()
    stack: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    passes: RankPasses | None = None
    world_size: int | None = None
    lost_events: int = 0
    first_mark_ns: int | None = None
    device_name: str = ""

    @property
    def origin_ns(self) -> int:
        """When the host's program begins: with its first call, or the first marked step where that is earlier."""
        first = int(self.call_start_ns[0])
        return first if self.first_mark_ns is None else min(first, self.first_mark_ns)

    @property
    def blocks(self) -> Int64:
        """For each event the blocks of its grid, as ``count_blocks`` gives them; empty where not known."""
        return count_blocks(self.grid)

    @property
    def duration_ns(self) -> Int64:
        """How long each event ran."""
        return self.end_ns - self.start_ns


def build_rank_graph(trace: Trace, device: int, passes: RankPasses | None = None) -> RankGraph | None:
    """Build the graph of one device of a trace; None where no event can be joined with its launch."""
    events = trace.device
    rows = np.flatnonzero(events.device == device)
    order = rows[np.lexsort((events.start_ns[rows], events.stream[rows]))]
    calls, kind = _select_calls(trace, order)
    if not len(calls) or not (trace.launch[order] != ABSENT).any():
        return None
    position = _positions(calls, len(trace.calls))
    launched = trace.launch[order]
    launch = np.where(launched == ABSENT, ABSENT, position[launched])
    start_ns, end_ns, stream = events.start_ns[order], events.end_ns[order], events.stream[order]
    call_start_ns, call_end_ns = trace.calls.start_ns[calls], trace.calls.end_ns[calls]
    last_launched = LastLaunched(stream, launch, start_ns, end_ns)
    (wait_source, wait_target), (host_call, host_event) = find_waits(trace, calls, kind, last_launched)
    row_of = _positions(order, len(events))
    compute = covered(events, rows[events.is_work(Work.COMPUTE, Work.FUSED)[rows]])
    groups = calls_by_group(trace, device, compute, most_ends=len(rows))
    by_group = rows_by_group(trace, device)
    stacks, stack = _stacks(trace, launched)
    step = step_numbers(trace)
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
        step=step[order],
        wait_source=wait_source,
        wait_target=wait_target,
        host_call=host_call,
        host_event=host_event,
        groups=groups,
        group_events=tuple(row_of[by_group[group.key]] for group in groups),
        marks=_marks_with_work(trace, step[order]),
        main_thread=int(trace.steps.thread[0]) if len(trace.steps) else ABSENT,
        grid=events.grid[order],
        processors=trace.processors,
        stacks=stacks,
        stack=stack,
        passes=passes,
        world_size=trace.world_size,
        lost_events=_count_lost(trace),
        first_mark_ns=int(trace.steps.start_ns[0]) if len(trace.steps) else None,
        device_name=trace.devices[device] if 0 <= device < len(trace.devices) else "",
    )


def _positions(rows: Int64, count: int) -> Int64:
    """For each of so many rows where it stands among the chosen ones, or ABSENT."""
    position = np.full(count, ABSENT, np.int64)
    position[rows] = np.arange(len(rows))
    return position


def _marks_with_work(trace: Trace, step: Int64) -> tuple[int, ...]:
    """The marked steps that launched anything: one that a profiler began and was stopped in did not."""
    numbers = [int(trace.names[name].partition("#")[2]) for name in trace.steps.name]
    busy = set(distinct(step))
    return tuple(number for number in numbers if number in busy)


def _count_lost(trace: Trace) -> int:
    """Launches of kernels in marked steps whose kernel is not in the trace, on no device."""
    launches = is_named(trace, _KERNEL_LAUNCHES)
    launches[trace.launch[trace.launch != ABSENT]] = False
    rows = np.flatnonzero(launches)
    return int((span_at(trace.steps, trace.calls.start_ns[rows]) != ABSENT).sum())


def _stacks(trace: Trace, launched: Int64) -> tuple[tuple[tuple[str, ...], ...], Int64]:
    """The operators and modules around the launch of each event, where operators were read."""
    if not len(trace.operators):
        return (), np.zeros(0, np.int64)
    calls, position = np.unique(launched[launched != ABSENT], return_inverse=True)
    stacks, of_call = find_stacks(trace, calls)
    stack = np.full(len(launched), ABSENT, np.int64)
    stack[launched != ABSENT] = of_call[position]
    return stacks, stack


def _select_calls(trace: Trace, events: Int64) -> tuple[Int64, Int8]:
    """The calls that launch, that let a stream wait, or that wait, in program order; and what each does."""
    calls = trace.calls
    is_launch = np.zeros(len(calls), np.bool_)
    launch = trace.launch[events]
    is_launch[launch[launch != ABSENT]] = True
    is_sync = is_named(trace, SYNCHRONIZING_CALLS)
    is_wait = is_named(trace, STREAM_WAIT_CALLS)
    is_busy = is_launch | is_sync
    rows = np.flatnonzero(is_busy | (is_wait & np.isin(calls.thread, distinct(calls.thread[is_busy]))))
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    kind = np.full(len(rows), CallKind.LAUNCH, np.int8)
    kind[is_wait[rows]] = CallKind.STREAM_WAIT
    kind[is_sync[rows]] = CallKind.SYNCHRONIZE
    return rows, kind


def _data_waits(trace: Trace, call_start_ns: Int64) -> Int64:
    """For each call the time, since the call before it began, in which the host waited for the data loader."""
    loading = trace.annotated("enumerate(DataLoader)")
    waits_ns = np.zeros(len(call_start_ns), np.int64)
    if len(loading):
        after = np.searchsorted(call_start_ns, loading.end_ns)
        is_inside = after < len(call_start_ns)
        np.add.at(waits_ns, after[is_inside], loading.duration_ns[is_inside])
    return waits_ns
