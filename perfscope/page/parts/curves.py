"""The parts of a page over time or size: steps, NVML's samples, bandwidths, and waits by rank and step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import median
from typing import NamedTuple

import numpy as np

from perfscope.analyzers.collectives import Collectives, GroupOperation
from perfscope.analyzers.loop import Loop, Pauses
from perfscope.analyzers.steps import StepTimes
from perfscope.analyzers.stragglers.records import LateRanks
from perfscope.analyzers.stragglers.traces import Stragglers
from perfscope.analyzers.throttling import Throttling
from perfscope.charts.grammar import (
    Area,
    Categories,
    Chart,
    Dots,
    Heat,
    HeatCell,
    Line,
    Mark,
    RowSpan,
    RowSpans,
    Scale,
    Values,
)
from perfscope.charts.palette import SERIES, Colour
from perfscope.constants import GB, MS_PER_S, NS_PER_MS, NS_PER_S
from perfscope.engine.run import Analysis
from perfscope.errors import MissingInput
from perfscope.measures.gpu_steps import UsedGpu, step_intervals_ns, used_gpus
from perfscope.measures.step_selection import find_undisturbed, job_times_ns
from perfscope.page.part import MOST_DRAWN, Drawn, PageFigure, bucket_edges, rank_name, result_of, select_rows
from perfscope.page.parts.bars import draw_late_ranks, draw_loop
from perfscope.renderers.summary import describe_steps
from perfscope.report import Column, Section
from perfscope.result import to_object
from perfscope.tables.columns import Bool, present
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps
from perfscope.tables.trace import ABSENT
from perfscope.units import format_bytes, format_ranges, format_seconds

_MOST_POINTS = 600
#: Where a step takes this many times as long as nearly all others, the axis is logarithmic.
_FAR, _NEARLY_ALL = 4, 0.9
_HAPPENINGS: tuple[tuple[str, Colour, Callable[[Steps], Bool]], ...] = (
    ("profiler window", Colour.COPY, lambda steps: np.asarray(steps.window != "", np.bool_)),
    ("checkpoint save", Colour.SYNCHRONISATION, lambda steps: present(steps.save_ns) | steps.draining),
    ("garbage collection", Colour.DATA, lambda steps: present(steps.garbage_ns)),
    ("compilation", Colour.BESIDE, lambda steps: present(steps.compile_ns)),
    ("validation", Colour.FORWARD, lambda steps: present(steps.no_grad_ns)),
)


class _StepRange(NamedTuple):
    """One step over all ranks, in milliseconds."""

    step: int
    fastest: float
    slowest: float
    job: float


def draw_steps(analysis: Analysis) -> Drawn:
    """The times of all steps and what else happened; the loop's parts, and the lines where it was seen."""
    run, times, loop = analysis.run, result_of(analysis, "steps", StepTimes), result_of(analysis, "loop", Loop)
    if run is None or times is None:
        return Drawn()
    ranges = _list_ranges(run)
    if not ranges:
        return Drawn("Nothing to draw: no step's time is known, because the beginning of none was recorded.")
    pauses = loop.pauses if loop is not None else None
    happenings = _chart_happenings(run, analysis)
    chart = _chart_times(ranges, times, pauses, "step" if happenings is None else "")
    columns = (Column("Step"), *(Column(f"{name} (ms)", 3) for name in ("The job", "Slowest rank", "Fastest rank")))
    rows = tuple((step.step, step.job, step.slowest, step.fastest) for step in ranges)
    figure = PageFigure((chart, *([happenings] if happenings else [])), Section(chart.title, columns, rows))
    lead = f"{describe_steps(to_object(times), None if loop is None else to_object(loop))}."
    if pauses is not None:
        lead += f" {pauses.in_words}: {format_seconds(pauses.s)} of the loop."
    return Drawn(lead, (figure, *(draw_loop(loop) if loop is not None else ())))


def _list_ranges(run: Run) -> list[_StepRange]:
    """Each step of the last process of each rank: its fastest and its slowest rank, and the job."""
    spans: dict[int, tuple[int, int]] = {}
    tables = find_undisturbed(run.steps).tables
    for table in tables:
        timed = present(table.wall_ns)
        for step, wall_ns in zip(table.step[timed].tolist(), table.wall_ns.data[timed].tolist(), strict=True):
            low, high = spans.get(step, (wall_ns, wall_ns))
            spans[step] = min(low, wall_ns), max(high, wall_ns)
    times = zip(
        *(column.tolist() for column in job_times_ns(tables, lambda table: present(table.wall_ns))), strict=True
    )
    return [_StepRange(step, *(time_ns / NS_PER_MS for time_ns in (*spans[step], job_ns))) for step, job_ns in times]


def _chart_times(ranges: Sequence[_StepRange], times: StepTimes, pauses: Pauses | None, label: str) -> Chart:
    """Every step at its height; the axis is logarithmic where few steps are much longer than the others."""
    ranks = len(times.ranks)
    usual = median(step.job for step in ranges)
    buckets = [ranges[first:end] for first, end in bucket_edges(len(ranges), _MOST_POINTS)]
    is_whole = len(buckets) == len(ranges)
    marks: list[Mark] = []
    if ranks > 1 or not is_whole:
        area = tuple(
            (float(bucket[0].step), min(step.fastest for step in bucket), max(step.slowest for step in bucket))
            for bucket in buckets
        )
        covered = f"fastest to slowest {'rank' if is_whole else 'of neighbouring steps'}"
        marks.append(Area(covered, Colour.FIRST, area))
    middles = tuple((float(bucket[0].step), median(step.job for step in bucket)) for bucket in buckets)
    marks.append(Line("the job" if ranks > 1 else "step", Colour.FIRST, middles))
    if is_whole:
        marks.append(Dots("", Colour.FIRST, middles, tuple(f"step {each.step}: {each.job:,.2f} ms" for each in ranges)))
    with_pause = set(pauses.steps) if pauses is not None else set()
    paused = [step for step in ranges if step.step in with_pause]
    if paused:
        paused = [paused[first] for first, _ in bucket_edges(len(paused), _MOST_POINTS)]
        tips = tuple(f"step {step.step}, with a pause: {step.job:,.2f} ms" for step in paused)
        points = tuple((float(step.step), step.job) for step in paused)
        marks.append(Dots("step with a pause", Colour.WORSE, points, tips))
    ends = (float(ranges[0].step), float(ranges[-1].step))
    if times.step_time_s is not None:
        mean = times.step_time_s * MS_PER_S
        marks.append(Line("step time", Colour.QUIET, tuple((x, mean) for x in ends), is_dashed=True))
    slowest = sorted(step.slowest for step in ranges)
    is_far = slowest[-1] > _FAR * slowest[int(_NEARLY_ALL * (len(slowest) - 1))] > 0
    return Chart(
        "Time of each step",
        f"Times of {len(ranges)} steps in milliseconds, around a median of {usual:.1f} ms.",
        Values(label, low=ends[0] - 0.5, high=ends[1] + 0.5),
        Values("ms, logarithmic", Scale.LOGARITHMIC) if is_far else Values("ms", low=0),
        tuple(marks),
    )


def _chart_happenings(run: Run, analysis: Analysis) -> Chart | None:
    tables = find_undisturbed(run.steps).tables
    found = [
        (name, colour, sorted({step for table in tables for step in table.step[select(table)].tolist()}))
        for name, colour, select in _HAPPENINGS
    ]
    throttling = result_of(analysis, "throttling", Throttling)
    throttled = sorted({step for gpu in throttling.gpus for step in gpu.steps}) if throttling else []
    rows = [row for row in (*found, ("throttled GPU", Colour.WORSE, throttled)) if row[2]]
    if not rows:
        return None
    marks = tuple(
        RowSpans("", colour, tuple(_spans(index, name, steps))) for index, (name, colour, steps) in enumerate(rows)
    )
    description = "; ".join(f"{name} in steps {format_ranges(steps, 12)}" for name, _, steps in rows)
    names = tuple(name for name, _, _ in rows)
    return Chart("What else happened", f"{description}.", Values("step"), Categories(names), marks, row_height=16)


def _spans(row: int, name: str, steps: Sequence[int]) -> Iterator[RowSpan]:
    """Neighbouring steps as one span."""
    for _, group in groupby(enumerate(steps), lambda pair: pair[1] - pair[0]):
        run = [step for _, step in group]
        tip = f"{name}: step{'s' * (len(run) > 1)} {format_ranges(run)}"
        yield RowSpan(row, run[0] - 0.5, run[-1] + 0.5, tip)


_COUNTERS: dict[str, tuple[str, float]] = {
    "power_mw": ("power (W)", MS_PER_S),
    "sm_clock_mhz": ("SM clock (MHz)", 1),
    "util_percent": ("utilisation (%)", 1),
    "temperature_c": ("temperature (°C)", 1),
    "memory_used_bytes": ("memory (GB)", GB),
}


class _Counter(NamedTuple):
    """One of the values of NVML on all GPUs: for each its name, its seconds and its values."""

    label: str
    lines: list[tuple[str, list[float], list[float]]]


def draw_gpus(analysis: Analysis) -> Drawn:
    """NVML's samples below the steps, on one axis of seconds."""
    run = analysis.run
    if run is None:
        return Drawn()
    try:
        used = used_gpus(run)
    except MissingInput as missing:
        return Drawn(f"Nothing to draw: {missing.problem}.")
    counters = [_read_counter(field, used) for field in _COUNTERS]
    counters = [counter for counter in counters if counter.lines]
    if not counters:
        return Drawn("Nothing to draw: the samples hold no values.")
    panels = [_panel(counter, is_first=index == 0) for index, counter in enumerate(counters)]
    panels[-1] = replace(panels[-1], x=Values("seconds since the first step"))
    columns = (*map(Column, ("GPU of", "Counter", "Samples")), *(Column(name, 1) for name in ("Least", "Mean", "Most")))
    rows = tuple(
        (name, counter.label, len(values), min(values), sum(values) / len(values), max(values))
        for counter in counters
        for name, _, values in counter.lines
    )
    lead = "Seconds since the first step of each host."
    if len(used) > len(SERIES):
        lead += f" The first {len(SERIES)} of {len(used)} GPUs are drawn; the table has all."
    figure = PageFigure((_steps_chart(used[0]), *panels), Section("NVML's samples", columns, rows))
    return Drawn(lead, (figure,))


def _origin_ns(gpu: UsedGpu) -> int:
    starts, _, _ = step_intervals_ns(gpu.steps)
    return int(starts[0]) if len(starts) else int(gpu.steps.end_ns[0])


def _read_counter(field: str, used: Sequence[UsedGpu]) -> _Counter:
    """A counter of all GPUs, from shortly before the first step to shortly after the last one."""
    label, unit = _COUNTERS[field]
    lines = []
    for gpu in used:
        column, t_ns = getattr(gpu.samples, field), gpu.samples.t_ns
        first_ns, last_ns = _origin_ns(gpu), int(gpu.steps.end_ns[-1])
        beside_ns = max((last_ns - first_ns) // 20, NS_PER_S // 2)
        rows = np.flatnonzero(present(column) & (t_ns >= first_ns - beside_ns) & (t_ns <= last_ns + beside_ns))
        if len(rows):
            name = rank_name(gpu.ranks[0]) if len(gpu.ranks) == 1 else f"ranks {gpu.ranks[0]}-{gpu.ranks[-1]}"
            seconds = (t_ns[rows] - first_ns) / NS_PER_S
            lines.append((name, seconds.tolist(), (np.asarray(column.data)[rows] / unit).tolist()))
    return _Counter(label, lines)


def _steps_chart(gpu: UsedGpu) -> Chart:
    """The steps of one rank as spans of time, of which neighbours differ."""
    starts, ends, rows = step_intervals_ns(gpu.steps)
    origin_ns = _origin_ns(gpu)
    numbers = gpu.steps.step[rows].tolist()
    spans: tuple[list[RowSpan], list[RowSpan]] = ([], [])
    for first, last in bucket_edges(len(numbers), _MOST_POINTS):
        start, end = (int(starts[first]) - origin_ns) / NS_PER_S, (int(ends[last - 1]) - origin_ns) / NS_PER_S
        tip = f"{_step_name(numbers[first:last])}: {(end - start) * MS_PER_S:,.1f} ms"
        spans[first % 2].append(RowSpan(0, start, end, tip, str(numbers[first]) if last - first == 1 else ""))
    marks = (RowSpans("", Colour.FIRST, tuple(spans[0])), RowSpans("", Colour.BESIDE, tuple(spans[1])))
    description = f"When each of {len(numbers)} steps ran, in seconds."
    names = Categories((f"steps of {rank_name(gpu.ranks[0])}",))
    return Chart("GPUs under the steps", description, Values(""), names, marks)


def _panel(counter: _Counter, *, is_first: bool) -> Chart:
    """One counter; the legend of the first one counts for all."""
    marks = tuple(
        Line(name if is_first else "", colour, _thin(seconds, values))
        for colour, (name, seconds, values) in zip(SERIES, counter.lines, strict=False)
    )
    least = min(min(values) for _, _, values in counter.lines)
    low = None if "clock" in counter.label or "temperature" in counter.label else min(0.0, least)
    description = f"{counter.label} of {len(counter.lines)} GPUs over the seconds of training."
    return Chart(counter.label, description, Values(""), Values("", low=low), marks, height=84)


def _thin(seconds: Sequence[float], values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    return tuple(
        (sum(seconds[first:last]) / (last - first), sum(values[first:last]) / (last - first))
        for first, last in bucket_edges(len(seconds), _MOST_POINTS)
    )


def draw_collectives(analysis: Analysis) -> Drawn:
    """The bandwidth of each kind of collective, by its size."""
    collectives = result_of(analysis, "collectives", Collectives)
    assert collectives is not None
    measured = [operation for operation in collectives.operations if operation.busbw_gb_s and operation.kind.bytes > 0]
    if not measured:
        return Drawn("No bandwidth can be drawn: no collective states its size and was seen on all of its ranks.")
    marks = []
    for index, name in enumerate(sorted({operation.kind.operation for operation in measured})):
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
        *map(Column, ("Operation", "Axis")),
        Column("Size (bytes)", 0),
        Column("busbw (GB/s)", 2),
        Column("Calls"),
    )
    rows = tuple((each.kind.operation, each.axis, each.kind.bytes, each.busbw_gb_s, each.calls) for each in measured)
    lead = (
        "Bandwidth as nccl-tests define it, from the time after the last rank has arrived. Large ones should be fast."
    )
    return Drawn(lead, (PageFigure((chart,), Section(chart.title, columns, rows)),))


def _describe(operation: GroupOperation) -> str:
    share = operation.wait_fraction
    waiting = "" if share is None else f", {share:.0%} of the time waiting"
    return (
        f"{operation.kind.operation} of {format_bytes(operation.kind.bytes)} ({operation.axis or 'axis not stated'}), "
        f"{operation.calls} calls: {operation.busbw_gb_s or 0:,.1f} GB/s{waiting}"
    )


def draw_stragglers(analysis: Analysis) -> Drawn:
    """Which rank is late: by the hosts of all steps, and a heat map of the waits in the traces of devices."""
    late, stragglers = result_of(analysis, "late_ranks", LateRanks), result_of(analysis, "stragglers", Stragglers)
    by_host = Drawn() if late is None else draw_late_ranks(late)
    by_device = Drawn() if stragglers is None else _draw_waits(stragglers)
    return Drawn(by_host.lead + by_device.lead, by_host.figures + by_device.figures)


def _draw_waits(stragglers: Stragglers) -> Drawn:
    steps = sorted({step for rank in stragglers.ranks for step in rank.caused_in})
    if not steps:
        return Drawn(
            "No rank is blamed: all waits are between the stages of a pipeline, which wait for each other by design."
        )
    selection = select_rows([rank.caused for rank in stragglers.ranks], "caused wait")
    ranks = [stragglers.ranks[index] for index in selection.rows]
    buckets = [steps[first:end] for first, end in bucket_edges(len(steps), MOST_DRAWN)]
    waits_ms = [
        [sum(rank.caused_in.get(step, 0.0) for step in bucket) / NS_PER_MS for bucket in buckets] for rank in ranks
    ]
    names, columns = [rank_name(rank.number) for rank in ranks], [_step_name(bucket) for bucket in buckets]
    hottest = max((wait for row in waits_ms for wait in row), default=0.0) or 1.0
    middle = median(wait for row in waits_ms for wait in row)
    cells = tuple(
        HeatCell(
            column, row, wait / hottest, f"{wait:,.2f}", f"{name}, {step}: the others waited {wait:,.2f} ms for it"
        )
        for row, (name, waits) in enumerate(zip(names, waits_ms, strict=True))
        for column, (step, wait) in enumerate(zip(columns, waits, strict=True))
    )
    chart = Chart(
        "Wait caused by rank and step",
        f"A cell for each of {len(names)} ranks and {len(buckets)} steps: up to {hottest:.2f}, median {middle:.2f} ms.",
        Categories(tuple(columns)),
        Categories(tuple(names)),
        (Heat(cells),),
    )
    table = Section(
        chart.title,
        (Column("Rank"), *(Column(f"{column} (ms)", 3) for column in columns)),
        tuple((name, *waits) for name, waits in zip(names, waits_ms, strict=True)),
    )
    lead = "How long the other ranks waited for each rank in their collectives: a dark cell is a rank that came late. "
    return Drawn(lead + selection.note, (PageFigure((chart,), table),))


def _step_name(steps: Sequence[int]) -> str:
    if steps[0] == ABSENT:
        return "outside steps"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]}-{steps[-1]}"
