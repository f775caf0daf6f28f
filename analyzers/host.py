"""Where the host's time went, from a trace of a run on CPUs: operators, communication, data loading and the rest.

A moment is *compute* where any thread is inside an operator that computes; *communication* where a collective is in
flight (``gloo:``, ``c10d::``) or a thread calls another worker (``rpc_sync#``, the distributed backward pass), and
exposed where no operator computes meanwhile; *data loading* where a loader is fetching and neither of the two goes on.
The rest is *other*: time outside of operators, which ``perfscope.analyzers.shared.outside_operators`` splits by what
Python did. Compute, exposed communication, exposed data loading and other add up to the window exactly. In a trace with
GPU events the device's time is the answer instead.

The engine's wrappers (``autograd::engine::evaluate_function``) are not compute: a thread waits inside them for
gradients to be reduced.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.shared.intervals import Intervals, covered, union
from perfscope.analyzers.shared.outside_operators import OutsideTime, attribute_outside, kinds_in_us, outside_section
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.report import Cell, Column, Json, Section, long_table, percent_of
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import HostSpans, Trace, distinct

_COMMUNICATION = (
    "gloo:", "nccl:", "nccl2:", "mpi:", "ucc:", "xccl:", "c10d::", "c10d_functional::", "_c10d_functional::",
    "record_param_comms", "torch_ccl::", "oneccl", "RecvActivation", "RecvGrad", "SendActivation", "SendGrad",
    "rpc_sync#", "rpc_async#", "rpc_torchscript#", "rpc_remote#", "to_here#", "torch::distributed::autograd::",
)  # fmt: skip
_WRAPPERS = ("autograd::engine::evaluate_function",)
_MODULE = "nn.Module: "
_LOADING = ("enumerate(DataLoader)",)
_MOST_OPERATORS = 20
_MOST_STEP_ROWS = 64


class HostParts(Struct, frozen=True, array_like=True):
    """Where a window of the host went, in nanoseconds.

    ``compute + exposed_communication + exposed_data_loading + other`` is the window.
    """

    window: int
    compute: int
    communication: int
    exposed_communication: int
    exposed_data_loading: int
    other: int

    def __add__(self, addend: HostParts) -> HostParts:
        return HostParts(*(getattr(self, name) + getattr(addend, name) for name in self.__struct_fields__))

    def data(self) -> dict[str, Json]:
        """The parts as microseconds."""
        return {f"{name}_us": getattr(self, name) / NS_PER_US for name in self.__struct_fields__}

    def cells(self) -> tuple[Cell, ...]:
        """The parts as a row of a table."""
        parts = (self.compute, self.exposed_communication, self.exposed_data_loading, self.other)
        shares = (percent_of(part, self.window) for part in parts)
        return (self.window / NS_PER_MS, *shares, self.communication / NS_PER_MS)


class OperatorTime(Struct, frozen=True, array_like=True):
    """One operator over a trace, or over all of them.

    Attributes:
        name: The operator.
        calls: How often it ran.
        self_ns: Its time without the operators inside it.
        total_ns: Its time with them.
        is_communication: Whether it communicates.
    """

    name: str
    calls: int
    self_ns: int
    total_ns: int
    is_communication: bool

    def plus(self, addend: OperatorTime) -> OperatorTime:
        """The calls of both."""
        return OperatorTime(
            name=self.name,
            calls=self.calls + addend.calls,
            self_ns=self.self_ns + addend.self_ns,
            total_ns=self.total_ns + addend.total_ns,
            is_communication=addend.is_communication,
        )


class HostRank(Struct, frozen=True, array_like=True):
    """The host's time in one trace.

    Attributes:
        rank: The rank; absent where nothing states it.
        trace: The file.
        total: Its whole window.
        steps: Its steps by their names.
        operators: Its operators.
        outside: What the thread of the steps did in the part that is *other*; the durations add up to it exactly.
        has_frames: Python stacks were recorded.
        is_damaged: A part of the trace is lost.
    """

    rank: int | None
    trace: str
    total: HostParts
    steps: tuple[tuple[str, HostParts], ...]
    operators: tuple[OperatorTime, ...]
    outside: tuple[OutsideTime, ...]
    has_frames: bool
    is_damaged: bool


class HostTime(Struct, frozen=True):
    """The host's time of every rank.

    Attributes:
        ranks: One entry a trace, by rank.
        operators: All operators over all ranks, the most expensive first.
        notes: What a reader must know.
    """

    ranks: tuple[HostRank, ...]
    operators: tuple[OperatorTime, ...]
    notes: tuple[str, ...]

    def data(self) -> Json:
        """``results.host``."""
        return {
            "ranks": [
                {
                    "rank": rank.rank,
                    "trace": rank.trace,
                    **rank.total.data(),
                    "damaged": rank.is_damaged,
                    "steps": [{"name": name, **parts.data()} for name, parts in rank.steps],
                    "has_stacks": rank.has_frames,
                    "outside_operators_by_kind": kinds_in_us(rank.outside),
                    "outside_operators": [part.data() for part in rank.outside],
                }
                for rank in self.ranks
            ],
            "operators": [
                {
                    "name": operator.name,
                    "calls": operator.calls,
                    "self_us": operator.self_ns / NS_PER_US,
                    "total_us": operator.total_ns / NS_PER_US,
                    "communication": operator.is_communication,
                }
                for operator in self.operators
            ],
            "notes": list(self.notes),
        }

    def sections(self) -> tuple[Section, ...]:
        """Tables of ranks, of steps and of operators."""
        ranks = tuple((_label(rank), *rank.total.cells()) for rank in self.ranks)
        steps = tuple((_label(rank), name, *parts.cells()) for rank in self.ranks for name, parts in rank.steps)
        sections = [Section("Host time", (Column("Rank"), *_COLUMNS), ranks, self.notes)]
        if steps:
            columns = (Column("Rank"), Column("Step"), *_COLUMNS)
            sections.append(long_table("Host time by step", columns, steps, most=_MOST_STEP_ROWS))
        if any(rank.has_frames for rank in self.ranks):
            sections.append(outside_section([(_label(rank), rank.total.window, rank.outside) for rank in self.ranks]))
        return (*sections, self._operators())

    def _operators(self) -> Section:
        rows = tuple(
            (operator.name, operator.calls, operator.self_ns / NS_PER_MS, operator.total_ns / NS_PER_MS)
            for operator in self.operators[:_MOST_OPERATORS]
        )
        columns = (Column("Operator"), Column("Calls"), Column("Self (ms)", 2), Column("Total (ms)", 2))
        note = "Over all ranks and threads, by self time: the time without the operators inside."
        return Section("Operators on the host", columns, rows, (note,))


_COLUMNS = (
    Column("Window (ms)", 2),
    Column("Compute (%)"),
    Column("Exposed comm. (%)"),
    Column("Data loading (%)"),
    Column("Other (%)"),
    Column("Comm. (ms)", 2),
)


def measure(trace: Trace) -> tuple[HostRank, ...] | None:
    """The host's time in one trace; empty where it has device events, None where it has no operators."""
    if len(trace.device):
        return ()
    if not len(trace.operators):
        return None
    is_communication = _names_starting(trace, _COMMUNICATION)
    compute, communication, loading = host_intervals(trace)
    windows = [
        (trace.names[name], int(start), int(end))
        for name, start, end in zip(trace.steps.name, trace.steps.start_ns, trace.steps.end_ns, strict=True)
    ]
    start, end = _window(trace, windows)
    gaps = (compute | communication | loading).gaps(start, end)
    frames, modules = _of_training_thread(trace)
    return (
        HostRank(
            rank=trace.rank,
            trace=trace.path,
            total=_parts(start, end, compute, communication, loading),
            steps=tuple((name, _parts(begin, stop, compute, communication, loading)) for name, begin, stop in windows),
            operators=_operator_times(trace, is_communication),
            outside=attribute_outside(gaps, frames, modules, trace.names),
            has_frames=bool(len(frames)),
            is_damaged=bool(trace.damage),
        ),
    )


def host_intervals(trace: Trace) -> tuple[Intervals, Intervals, Intervals]:
    """When the host computed, when it communicated, and when it did neither and loaded data."""
    is_communication = _names_starting(trace, _COMMUNICATION)
    spans = trace.operators, trace.annotations
    communication = _covered(spans, is_communication)
    compute = _compute(trace.operators, spans, is_communication, _names_starting(trace, _WRAPPERS))
    return compute, communication, _covered(spans, _names_starting(trace, _LOADING)) - (compute | communication)


def computing_operators(trace: Trace) -> HostSpans:
    """The operators that compute: neither communication nor the engine's wrappers."""
    return trace.operators.take(~_names_starting(trace, _COMMUNICATION + _WRAPPERS)[trace.operators.name])


def analyze(partials: Sequence[tuple[HostRank, ...]]) -> HostTime:
    """Put the ranks in order and add up their operators.

    Raises:
        MissingInput: A trace holds device events, or none holds operators.
    """
    if not partials:
        raise MissingInput("the traces contain no operators of the framework")
    if not all(partials):
        raise MissingInput("the traces contain GPU events: see the device time")
    ranks = sorted(
        (rank for partial in partials for rank in partial),
        key=lambda rank: (rank.rank is None, rank.rank or 0, rank.trace),
    )
    notes = [
        "From traces without GPU events. Compute, exposed communication, data loading and other add up to the window. "
        "Other is time outside of operators."
    ]
    not_recorded = [rank for rank in ranks if not rank.has_frames]
    if not_recorded:
        labels = "" if len(not_recorded) == len(ranks) else f" on rank {', '.join(map(_label, not_recorded))}"
        notes.append(
            f"The time outside of operators is not attributed{labels}: record with `--stack` to see which functions "
            "sleep, wait, read files or run Python."
        )
    without_steps = [_label(rank) for rank in ranks if not rank.steps]
    if without_steps:
        notes.append(f"No profiler steps in the trace of rank {', '.join(without_steps)}: only totals are reported.")
    return HostTime(tuple(ranks), _add_up_operators(ranks), tuple(notes))


def _of_training_thread(trace: Trace) -> tuple[HostSpans, HostSpans]:
    """The Python frames, and the ranges of modules, of the thread that runs the steps."""
    marks = trace.steps if len(trace.steps) else trace.operators
    threads, counts = np.unique(marks.thread, return_counts=True)
    thread = threads[counts.argmax()]
    modules = trace.annotated(_MODULE)
    frames = trace.operators.take(np.zeros(0, np.int64)) if trace.frames is None else trace.frames
    return frames.take(frames.thread == thread), modules.take(modules.thread == thread)


def self_times(spans: HostSpans) -> Int64:
    """Each span's duration without the spans inside it on the same thread, in nanoseconds; never below 0."""
    order = np.lexsort((-spans.duration_ns, spans.start_ns, spans.thread, spans.process))
    starts, ends = spans.start_ns[order].tolist(), spans.end_ns[order].tolist()
    threads = np.stack([spans.process, spans.thread])[:, order]
    changes = np.concatenate([[True], (threads[:, 1:] != threads[:, :-1]).any(axis=0)]).tolist()
    own_ns = (spans.duration_ns[order]).tolist()
    open_spans: list[int] = []
    for index, start in enumerate(starts):
        if changes[index]:
            open_spans.clear()
        while open_spans and ends[open_spans[-1]] <= start:
            open_spans.pop()
        if open_spans:
            parent = open_spans[-1]
            own_ns[parent] -= min(ends[index], ends[parent]) - start
        open_spans.append(index)
    result = np.empty(len(own_ns), np.int64)
    result[order] = np.maximum(own_ns, 0)
    return result


def _names_starting(trace: Trace, prefixes: tuple[str, ...]) -> Bool:
    """Which of the trace's names start with one of the prefixes."""
    return np.array([name.startswith(prefixes) for name in trace.names], np.bool_)


def _covered(tables: Sequence[HostSpans], names: Bool) -> Intervals:
    """The time that the spans of some names cover."""
    chosen = [table.take(names[table.name]) for table in tables if len(table)]
    if not chosen:
        return Intervals()
    return union(
        np.concatenate([spans.start_ns for spans in chosen]), np.concatenate([spans.end_ns for spans in chosen])
    )


def _compute(operators: HostSpans, spans: Sequence[HostSpans], is_communication: Bool, is_wrapper: Bool) -> Intervals:
    """When any thread is inside an operator that computes, and not inside a communication of its own."""
    computes = operators.take(~(is_communication | is_wrapper)[operators.name])
    total = Intervals()
    for thread in distinct(computes.thread):
        of_thread = [table.take(table.thread == thread) for table in spans]
        computing = covered(computes, computes.thread == thread)
        total = total | (computing - _covered(of_thread, is_communication))
    return total


def _window(trace: Trace, windows: Sequence[tuple[str, int, int]]) -> tuple[int, int]:
    """From the first step to the last; without steps from the first operator to the end of the last."""
    if windows:
        return min(start for _, start, _ in windows), max(end for _, _, end in windows)
    return int(trace.operators.start_ns.min()), int(trace.operators.end_ns.max())


def _parts(start: int, end: int, compute: Intervals, communication: Intervals, loading: Intervals) -> HostParts:
    compute, communication, loading = (part.clip(start, end) for part in (compute, communication, loading))
    exposed = (communication - compute).measure
    return HostParts(
        window=end - start,
        compute=compute.measure,
        communication=communication.measure,
        exposed_communication=exposed,
        exposed_data_loading=loading.measure,
        other=end - start - compute.measure - exposed - loading.measure,
    )


def _operator_times(trace: Trace, is_communication: Bool) -> tuple[OperatorTime, ...]:
    result = []
    of_annotations = trace.annotations.take(is_communication[trace.annotations.name])
    for spans in (trace.operators, of_annotations):
        own = self_times(spans)
        for name in distinct(spans.name):
            rows = spans.name == name
            result.append(
                OperatorTime(
                    name=trace.names[name],
                    calls=int(rows.sum()),
                    self_ns=int(own[rows].sum()),
                    total_ns=int(spans.duration_ns[rows].sum()),
                    is_communication=bool(is_communication[name]),
                )
            )
    return tuple(result)


def _add_up_operators(ranks: Sequence[HostRank]) -> tuple[OperatorTime, ...]:
    added: dict[str, OperatorTime] = {}
    for rank in ranks:
        for operator in rank.operators:
            name = operator.name
            added[name] = added[name].plus(operator) if name in added else operator
    return tuple(sorted(added.values(), key=lambda operator: (-operator.self_ns, operator.name)))


def _label(rank: HostRank) -> str:
    name = "unknown" if rank.rank is None else str(rank.rank)
    return f"{name} (damaged)" if rank.is_damaged else name
