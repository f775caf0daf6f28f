"""Communication: overlap by axis, collectives by size and bandwidth, and who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from perfscope.analyzers.collectives import Collectives, Operation
from perfscope.analyzers.overlap import Overlap
from perfscope.analyzers.stragglers.traces import Stragglers
from perfscope.charts.grammar import Categories, Chart, Dots, Heat, HeatCell, Scale, Span, Spans, Values
from perfscope.charts.palette import SERIES, Colour
from perfscope.constants import NS_PER_MS
from perfscope.engine.run import Analysis
from perfscope.page.part import Figure, Part, rank_name, result_of, why_absent
from perfscope.page.selection import bucket_edges, fit_row_height, select_rows
from perfscope.report import Cell, Column, Section
from perfscope.tables.trace import ABSENT
from perfscope.units import format_bytes

_MOST_RANKS, _MOST_STEPS = 64, 60
_WIDE_ENOUGH_FOR_TEXT = 14


def show_overlap(analysis: Analysis) -> Part:
    """How much communication of each axis hides behind computation."""
    overlap = result_of(analysis, "overlap", Overlap)
    if overlap is None or not overlap.axes:
        return Part("overlap", "Overlap by axis", absent=why_absent(analysis, "overlap"))
    names, hidden, exposed = [], [], []
    rows: list[tuple[Cell, ...]] = []
    for index, axis in enumerate(overlap.axes):
        total, behind, alone = (
            time_ns / NS_PER_MS for time_ns in (axis.row.communication, axis.row.hidden, axis.row.exposed)
        )
        name = axis.axis or "not stated"
        names.append(name)
        hidden.append(Span(index, 0, behind, f"{name}: {behind:,.2f} ms hidden"))
        exposed.append(Span(index, behind, behind + alone, f"{name}: {alone:,.2f} ms exposed"))
        rows.append((name, total, behind, alone))
    chart = Chart(
        "Communication by axis of parallelism",
        "For each axis the communication that computation hides and that it does not, in milliseconds over all ranks.",
        Values("ms over all ranks", low=0),
        Categories("", tuple(names)),
        (
            Spans("hidden behind computation", Colour.BESIDE, tuple(hidden)),
            Spans("exposed", Colour.COMMUNICATION, tuple(exposed)),
        ),
        row_height=28,
    )
    columns = (Column("Axis"), Column("Communication (ms)", 3), Column("Hidden (ms)", 3), Column("Exposed (ms)", 3))
    figure = Figure((chart,), Section("Communication by axis", columns, tuple(rows)))
    return Part("overlap", "Overlap by axis", figures=(figure,), sections=overlap.sections())


def show_collectives(analysis: Analysis) -> Part:
    """The bandwidth of each kind of collective, by its size."""
    collectives = result_of(analysis, "collectives", Collectives)
    identity, title = "collectives", "Collectives"
    if collectives is None:
        return Part(identity, title, absent=why_absent(analysis, "collectives"))
    measured = [operation for operation in collectives.operations if operation.busbw_gb_s and operation.kind.bytes > 0]
    if not measured:
        reason = "No bandwidth can be drawn: no collective states its size and was seen on all of its ranks."
        return Part(identity, title, reason, sections=collectives.sections())
    names = sorted({operation.kind.operation for operation in measured})
    marks = []
    for index, name in enumerate(names):
        members = [operation for operation in measured if operation.kind.operation == name]
        points = tuple((float(operation.kind.bytes), operation.busbw_gb_s or 0.0) for operation in members)
        marks.append(Dots(name, SERIES[index % len(SERIES)], points, tuple(map(_describe, members))))
    chart = Chart(
        "Bus bandwidth by size",
        f"Bandwidth of {len(measured)} kinds of collectives against their size.",
        Values("size (bytes)", Scale.LOGARITHMIC),
        Values("busbw (GB/s)", low=0),
        tuple(marks),
        height=260,
    )
    columns = (
        Column("Operation"), Column("Axis"), Column("Size (bytes)", 0), Column("busbw (GB/s)", 2), Column("Calls"),
        Column("Time (ms)", 3),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            operation.kind.operation, operation.axis, operation.kind.bytes, operation.busbw_gb_s, operation.calls,
            operation.duration / NS_PER_MS,
        )
        for operation in measured
    ]  # fmt: skip
    lead = (
        "Bandwidth as nccl-tests define it, from the time after the last rank has arrived. Large ones should be fast."
    )
    figure = Figure((chart,), Section("Bus bandwidth by size", columns, tuple(rows)))
    return Part(identity, title, lead, (figure,), collectives.sections())


def _describe(operation: Operation) -> str:
    share = operation.wait_fraction
    waiting = "" if share is None else f", {share:.0%} of the time waiting"
    return (
        f"{operation.kind.operation} of {format_bytes(operation.kind.bytes)} ({operation.axis or 'axis not stated'}), "
        f"{operation.calls} calls: {operation.busbw_gb_s or 0:,.1f} GB/s{waiting}"
    )


def show_stragglers(analysis: Analysis) -> Part:
    """A heat map of the waits that each rank caused in each step."""
    stragglers = result_of(analysis, "stragglers", Stragglers)
    identity, title = "stragglers", "Stragglers"
    if stragglers is None:
        return Part(identity, title, absent=why_absent(analysis, "stragglers"))
    steps = sorted({step for rank in stragglers.ranks for step in rank.caused_in})
    if not steps:
        reason = (
            "No rank is blamed: all waits are between the stages of a pipeline, which wait for each other by design."
        )
        return Part(identity, title, reason, sections=stragglers.sections())
    selection = select_rows([rank.caused for rank in stragglers.ranks], _MOST_RANKS, "caused wait")
    ranks = [stragglers.ranks[index] for index in selection.rows]
    buckets = [steps[first:end] for first, end in bucket_edges(len(steps), _MOST_STEPS)]
    waits_ms = [
        [sum(rank.caused_in.get(step, 0.0) for step in bucket) / NS_PER_MS for bucket in buckets] for rank in ranks
    ]
    chart = _heat_map([rank_name(rank.rank) for rank in ranks], buckets, waits_ms)
    columns = (Column("Rank"), *(Column(f"{_step_name(bucket)} (ms)", 3) for bucket in buckets))
    rows: list[tuple[Cell, ...]] = [(rank_name(rank.rank), *waits) for rank, waits in zip(ranks, waits_ms, strict=True)]
    lead = "How long the other ranks waited for each rank in their collectives: a dark cell is a rank that came late. "
    figure = Figure((chart,), Section("Caused wait by rank and step", columns, tuple(rows)))
    return Part(identity, title, (lead + selection.note).strip(), (figure,), stragglers.sections())


def _step_name(steps: Sequence[int]) -> str:
    if steps[0] == ABSENT:
        return "outside steps"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]}-{steps[-1]}"


def _heat_map(names: Sequence[str], buckets: Sequence[Sequence[int]], waits_ms: Sequence[Sequence[float]]) -> Chart:
    hottest = max((wait for row in waits_ms for wait in row), default=0.0) or 1.0
    has_text = len(buckets) <= _WIDE_ENOUGH_FOR_TEXT
    cells = tuple(
        HeatCell(
            column, row, wait / hottest, f"{wait:,.2f}" if has_text else "",
            f"{names[row]}, {_step_name(buckets[column])}: the others waited {wait:,.2f} ms for it",
        )
        for row, waits in enumerate(waits_ms)
        for column, wait in enumerate(waits)
    )  # fmt: skip
    middle = median(wait for row in waits_ms for wait in row)
    return Chart(
        "Wait caused by rank and step",
        f"A cell for each of {len(names)} ranks and {len(buckets)} steps: up to {hottest:.2f}, median {middle:.2f} ms.",
        Categories("", tuple(_step_name(bucket) for bucket in buckets)),
        Categories("", tuple(names)),
        (Heat("", cells),),
        row_height=fit_row_height(len(names)),
    )
