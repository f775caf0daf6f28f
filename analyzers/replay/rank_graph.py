"""The execution graph of one rank: what its host did in order, what its device ran, and what waited for what.

The host is one sequence of calls into the device's runtime: PyTorch's main thread stands still while autograd's thread
works, so calls of all threads that give the device work are taken in the order of their start. The device is a sequence
of events a stream. Between them are launches, waits of a stream for events on other streams, and calls in which the
host waits for the device. What waits for what is found by
``perfscope.analyzers.replay.waits``.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.communication.calls import GroupCalls, calls_by_group, rows_by_group
from perfscope.analyzers.pipelines.rank_passes import RankPasses
from perfscope.analyzers.replay.blocks import count_blocks
from perfscope.analyzers.replay.stacks import find_stacks
from perfscope.analyzers.replay.waits import (
    STREAM_WAIT_CALLS,
    SYNCHRONIZING_CALLS,
    CallKind,
    LastLaunched,
    find_waits,
    is_named,
)
from perfscope.analyzers.shared.intervals import covered
from perfscope.analyzers.shared.marked_steps import step_numbers
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, Int8, Int32, Trace, Work, distinct, span_at

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
