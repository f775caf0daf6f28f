"""Where the host's time went, from a trace of a run on CPUs: operators, communication, data loading and the rest.

A moment is *compute* where any thread is inside an operator that computes; the engine's wrappers do not, because a
thread waits inside them for gradients. It is *communication* where a collective is in flight or a thread calls another
worker, exposed where no operator computes meanwhile. It is *data loading* where a loader fetches and neither of the two
goes on. The rest is *other*, outside of operators, split by the innermost Python frame, where stacks were recorded. The
parts add up to the window exactly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from perfscope import report
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.measures.nesting import Nesting
from perfscope.measures.rank_labels import in_order
from perfscope.report import MOST_ROWS, Cell, Section, long_table, percent_of
from perfscope.result import MS_OF_NS, Column, Doc, Figures, InUnit, Result, Sums, Table
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.intervals import Intervals, covered, union
from perfscope.tables.trace import ABSENT, HostSpans, Trace, distinct

_COMMUNICATION = (
    "gloo:", "nccl:", "nccl2:", "mpi:", "ucc:", "xccl:", "c10d::", "c10d_functional::", "_c10d_functional::",
    "record_param_comms", "torch_ccl::", "oneccl", "RecvActivation", "RecvGrad", "SendActivation", "SendGrad",
    "rpc_sync#", "rpc_async#", "rpc_torchscript#", "rpc_remote#", "to_here#", "torch::distributed::autograd::",
)  # fmt: skip
_WRAPPERS = ("autograd::engine::evaluate_function",)
_LOADING = ("enumerate(DataLoader)",)
#: How the profiler writes a function that is not written in Python: ``<built-in function sleep>``,
#: ``<built-in method read of _io.FileIO object at 0x7f>``.
BUILT_IN = re.compile(r"<(?:built-in (?:function|method)|method) '?(?P<call>[^' >]+)'?(?: of .*)?>")


class HostParts(Sums, frozen=True, array_like=True):
    """Where the host's time went in nanoseconds: the parts add up to the window exactly."""

    window: int
    compute: int
    communication: int
    exposed_communication: int
    exposed_data_loading: int
    other: int
    window_us = InUnit("window", NS_PER_US, "The whole window.")
    compute_us = InUnit("compute", NS_PER_US, "Any thread is inside an operator that computes.")
    communication_us = InUnit("communication", NS_PER_US, "A collective is in flight, also beside compute.")
    exposed_communication_us = InUnit(
        "exposed_communication", NS_PER_US, "A collective is in flight, and no operator computes."
    )
    exposed_data_loading_us = InUnit(
        "exposed_data_loading", NS_PER_US, "A loader is fetching, and neither of the two goes on."
    )
    other_us = InUnit("other", NS_PER_US, "The rest.")

    def cells(self) -> tuple[Cell, ...]:
        """The parts as a row of a table."""
        parts = (self.compute, self.exposed_communication, self.exposed_data_loading, self.other)
        shares = (percent_of(part, self.window) for part in parts)
        return (self.window / NS_PER_MS, *shares, self.communication / NS_PER_MS)


class HostStep(Figures, frozen=True, array_like=True):
    """Where one step went."""

    INLINE = ("parts",)
    name: Annotated[str, Doc("The step.")]
    parts: HostParts


class OperatorTime(Figures, frozen=True, array_like=True):
    """An operator on the host, over a trace or over all ranks."""

    name: Annotated[str, Doc("Its name.")]
    calls: Annotated[int, Doc("How often it ran.")]
    self_ns: int
    total_ns: int
    communication: Annotated[bool, Doc("Whether it communicates.")]
    self_us = InUnit("self_ns", NS_PER_US, "Its time without the operators inside it.")
    total_us = InUnit("total_ns", NS_PER_US, "Its time with them.")


class OutsideTime(Figures, frozen=True, array_like=True):
    """Time outside of operators of one function."""

    function: Annotated[str | None, Doc("``FILE(LINE): NAME`` in Python; None where nothing was recorded.")]
    call: Annotated[str | None, Doc("The built-in function that it called; None where its own code ran.")]
    duration_ns: int
    us = InUnit("duration_ns", NS_PER_US, "How long.")


class HostRank(Figures, frozen=True, array_like=True):
    """The host of one rank."""

    INLINE = ("total",)
    rank: Annotated[int | None, Doc("The rank.")]
    trace: Annotated[str, Doc("The file.")]
    total: HostParts
    steps: Annotated[tuple[HostStep, ...], Doc("Each step.")]
    operators: tuple[OperatorTime, ...]
    outside_operators: Annotated[
        tuple[OutsideTime, ...],
        Doc("What the thread of the steps did outside of operators; it adds up to ``other_us`` exactly."),
    ]
    has_stacks: Annotated[bool, Doc("Whether Python stacks were recorded.")]
    damaged: Annotated[bool, Doc("Whether a part of the trace is lost.")]


class HostTime(Result, frozen=True):
    """``results.host``: where the host's time went, of traces without a device."""

    ranks: Annotated[tuple[HostRank, ...], Doc("Each rank.")]
    operators: Annotated[tuple[OperatorTime, ...], Doc("All operators over all ranks, the most expensive first.")]
    notes: Annotated[tuple[str, ...], Doc("What a reader must know.")]

    TABLES = (
        Table(
            "Operators on the host",
            "operators",
            (
                Column("Operator", "name"),
                Column("Calls", "calls"),
                Column("Self (ms)", "self_ns", MS_OF_NS, 2),
                Column("Total (ms)", "total_ns", MS_OF_NS, 2),
            ),
        ),
        Table(
            "Host time outside of operators",
            "",
            (
                Column("Rank", lambda row: _label(row[0])),
                Column("Function", lambda row: row[1].function or "no frame recorded"),
                Column("Call", lambda row: row[1].call or "its own code"),
                Column("Time (ms)", lambda row: row[1].duration_ns, MS_OF_NS, 2),
                Column("Of the window (%)", lambda row: percent_of(row[1].duration_ns, row[0].total.window)),
            ),
        ),
    )

    def sections(self) -> tuple[Section, ...]:
        """Tables of ranks, of steps and of operators."""
        ranks = tuple((_label(rank), *rank.total.cells()) for rank in self.ranks)
        steps = tuple((_label(rank), step.name, *step.parts.cells()) for rank in self.ranks for step in rank.steps)
        sections = [Section("Host time", (report.Column("Rank"), *_COLUMNS), ranks, self.notes)]
        if steps:
            columns = (report.Column("Rank"), report.Column("Step"), *_COLUMNS)
            sections.append(long_table("Host time by step", columns, steps, most=MOST_ROWS))
        operators, outside = self.TABLES
        if any(rank.has_stacks for rank in self.ranks):
            note = (
                "What the thread of the steps did in the part that is other: the innermost Python function, and the "
                f"built-in function that it called; at most {MOST_ROWS} rows a rank, the longest first."
            )
            parts = ((rank, part) for rank in self.ranks for part in rank.outside_operators[:MOST_ROWS])
            sections.append(outside.section(parts, [note]))
        note = "Over all ranks and threads, by self time: the time without the operators inside."
        return (*sections, operators.section(self.operators[:MOST_ROWS], [note]))


_COLUMNS = (
    report.Column("Window (ms)", 2),
    report.Column("Compute (%)"),
    report.Column("Exposed comm. (%)"),
    report.Column("Data loading (%)"),
    report.Column("Other (%)"),
    report.Column("Comm. (ms)", 2),
)


def measure(trace: Trace) -> tuple[HostRank, ...] | None:
    """The host's time in one trace; empty where it has device events, None where it has no operators."""
    if len(trace.device):
        return ()
    if not len(trace.operators):
        return None
    is_communication = _names_starting(trace, _COMMUNICATION)
    compute, communication, loading = find_activity(trace)
    windows = [
        (trace.names[name], int(start), int(end))
        for name, start, end in zip(trace.steps.name, trace.steps.start_ns, trace.steps.end_ns, strict=True)
    ]
    start, end = find_window(trace)
    gaps = (compute | communication | loading).gaps(start, end)
    frames = frames_of_training(trace)
    return (
        HostRank(
            rank=trace.rank,
            trace=trace.path,
            total=_parts(start, end, compute, communication, loading),
            steps=tuple(
                HostStep(name, _parts(begin, stop, compute, communication, loading)) for name, begin, stop in windows
            ),
            operators=_operator_times(trace, is_communication),
            outside_operators=attribute_outside(gaps, frames, trace.names),
            has_stacks=bool(len(frames)),
            damaged=bool(trace.damage),
        ),
    )


def find_activity(trace: Trace) -> tuple[Intervals, Intervals, Intervals]:
    """When the host computes, when it communicates, and when it loads data and does neither."""
    is_communication, spans = _names_starting(trace, _COMMUNICATION), (trace.operators, trace.annotations)
    communication = _covered(spans, is_communication)
    compute = _compute(trace.operators, spans, is_communication, _names_starting(trace, _WRAPPERS))
    return compute, communication, _covered(spans, _names_starting(trace, _LOADING)) - (compute | communication)


def find_window(trace: Trace) -> tuple[int, int]:
    """From the first step to the last; without steps from the first operator to the end of the last."""
    spans = trace.steps if len(trace.steps) else trace.operators
    return int(spans.start_ns.min()), int(spans.end_ns.max())


def outermost_operators(trace: Trace) -> Bool:
    """Which operators are in no other one; the engine's wrappers are none."""
    rows = np.flatnonzero(~_names_starting(trace, _WRAPPERS)[trace.operators.name])
    is_outermost = np.zeros(len(trace.operators), np.bool_)
    is_outermost[rows[nest(trace.operators.take(rows)).parent == ABSENT]] = True
    return is_outermost


def analyze(partials: Sequence[tuple[HostRank, ...]]) -> HostTime:
    """Add up the operators of the ranks; MissingInput where a trace holds device events, or none operators."""
    if not partials:
        raise MissingInput("the traces contain no operators of the framework")
    if not all(partials):
        raise MissingInput("the traces contain GPU events: see the device time")
    ranks = in_order((rank for partial in partials for rank in partial), "trace")
    notes = [
        "From traces without GPU events. Compute, exposed communication, data loading and other add up to the window. "
        "Other is time outside of operators."
    ]
    not_recorded = [rank for rank in ranks if not rank.has_stacks]
    if not_recorded:
        labels = "" if len(not_recorded) == len(ranks) else f" on rank {', '.join(map(_label, not_recorded))}"
        notes.append(
            f"The time outside of operators is not attributed{labels}: record with `--stack` to see which functions "
            "sleep, wait, read files or run Python."
        )
    without_steps = [_label(rank) for rank in ranks if not rank.steps]
    if without_steps:
        notes.append(f"No profiler steps in the trace of rank {', '.join(without_steps)}: only totals are reported.")
    return HostTime(ranks, _add_up_operators(ranks), tuple(notes))


def frames_of_training(trace: Trace) -> HostSpans:
    """The Python functions of the thread of the steps; none without recorded stacks."""
    marks = trace.steps if len(trace.steps) else trace.operators
    threads, counts = np.unique(marks.thread, return_counts=True)
    frames = trace.operators.take(np.zeros(0, np.int64)) if trace.frames is None else trace.frames
    return frames.take(frames.thread == threads[counts.argmax()])


def attribute_outside(gaps: Intervals, frames: HostSpans, names: Sequence[str]) -> tuple[OutsideTime, ...]:
    """What a thread did in the gaps between operators, the longest first; the durations add up to the gaps exactly."""
    nesting = nest(frames)
    own_ns = _own_times(frames, nesting, gaps)
    times_ns: dict[tuple[str, str], int] = {}
    for row in np.flatnonzero(own_ns).tolist():
        function, built_in = row, BUILT_IN.fullmatch(names[frames.name[row]])
        while function != ABSENT and BUILT_IN.fullmatch(names[frames.name[function]]):
            function = int(nesting.parent[function])
        key = "" if function == ABSENT else names[frames.name[function]], built_in["call"] if built_in else ""
        times_ns[key] = times_ns.get(key, 0) + int(own_ns[row])
    missing_ns = gaps.measure - int(own_ns.sum())
    if missing_ns:
        times_ns["", ""] = missing_ns
    parts = [OutsideTime(function or None, call or None, time) for (function, call), time in times_ns.items()]
    return tuple(sorted(parts, key=lambda part: (-part.duration_ns, part.function or "", part.call or "")))


def nest(spans: HostSpans) -> Nesting:
    """Which span of its thread is around each."""
    threads = np.unique(np.stack([spans.process, spans.thread]), axis=1, return_inverse=True)[1]
    return Nesting(spans.start_ns, spans.end_ns, threads.reshape(-1))


def _own_times(spans: HostSpans, nesting: Nesting, within: Intervals | None = None) -> Int64:
    """Each span's time without the spans inside it on the same thread, in some intervals; never below 0."""
    ends, parent = spans.end_ns.copy(), nesting.parent
    for row in nesting.order[parent[nesting.order] != ABSENT].tolist():
        ends[row] = min(ends[row], ends[parent[row]])
    time_ns = ends - spans.start_ns if within is None else within.measure_within(spans.start_ns, ends)
    own_ns, inner = time_ns.copy(), np.flatnonzero(parent != ABSENT)
    np.subtract.at(own_ns, parent[inner], time_ns[inner])
    return np.asarray(np.maximum(own_ns, 0), np.int64)


def _names_starting(trace: Trace, prefixes: tuple[str, ...]) -> Bool:
    return np.array([name.startswith(prefixes) for name in trace.names], np.bool_)


def _covered(tables: Sequence[HostSpans], names: Bool) -> Intervals:
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
        own = _own_times(spans, nest(spans))
        for name in distinct(spans.name):
            rows = spans.name == name
            result.append(
                OperatorTime(
                    name=trace.names[name],
                    calls=int(rows.sum()),
                    self_ns=int(own[rows].sum()),
                    total_ns=int(spans.duration_ns[rows].sum()),
                    communication=bool(is_communication[name]),
                )
            )
    return tuple(result)


def _add_up_operators(ranks: Sequence[HostRank]) -> tuple[OperatorTime, ...]:
    by_name: dict[str, list[OperatorTime]] = {}
    for rank in ranks:
        for operator in rank.operators:
            by_name.setdefault(operator.name, []).append(operator)
    added = (
        OperatorTime(
            name=name,
            calls=sum(operator.calls for operator in own),
            self_ns=sum(operator.self_ns for operator in own),
            total_ns=sum(operator.total_ns for operator in own),
            communication=own[-1].communication,
        )
        for name, own in by_name.items()
    )
    return tuple(sorted(added, key=lambda operator: (-operator.self_ns, operator.name)))


def _label(rank: HostRank) -> str:
    name = "unknown" if rank.rank is None else str(rank.rank)
    return f"{name} (damaged)" if rank.damaged else name
