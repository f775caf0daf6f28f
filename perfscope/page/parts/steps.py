"""Step times: each step from its fastest to its slowest rank, and what else happened in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from perfscope.analyzers.shared.step_selection import find_undisturbed, job_times_ns
from perfscope.analyzers.steps import StepTimes
from perfscope.analyzers.throttling import Throttling
from perfscope.analyzers.wall_clock import WallClock
from perfscope.charts.grammar import Area, Categories, Chart, Dots, Line, Mark, Span, Spans, Values
from perfscope.charts.palette import Colour
from perfscope.constants import MS_PER_S, NS_PER_MS
from perfscope.engine.run import Analysis
from perfscope.page.part import Figure, Part, result_of, why_absent
from perfscope.page.selection import bucket_edges
from perfscope.report import Cell, Column, Section
from perfscope.tables.columns import Bool, present
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps
from perfscope.units import format_ranges

_IDENTITY, _TITLE = "steps", "Step times"
_MOST_POINTS = 600
#: Steps that take this many times the median are drawn at the upper edge.
_HIGHEST = 2.5
_MOST_NAMED = 6
_HAPPENINGS: tuple[tuple[str, Colour, Callable[[Steps], Bool]], ...] = (
    ("profiler window", Colour.COPY, lambda steps: np.asarray(steps.window != "", np.bool_)),
    ("checkpoint save", Colour.SYNCHRONISATION, lambda steps: present(steps.save_ns) | steps.draining),
    ("garbage collection", Colour.DATA, lambda steps: present(steps.garbage_ns)),
    ("compilation", Colour.BESIDE, lambda steps: present(steps.compile_ns)),
    ("validation", Colour.FORWARD, lambda steps: present(steps.no_grad_ns)),
)


@dataclass(frozen=True, slots=True)
class StepRange:
    """One step over all ranks, in milliseconds."""

    step: int
    fastest: float
    slowest: float
    job: float


def show_steps(analysis: Analysis) -> Part:
    """The times of all steps, with windows, saves, collections of garbage, compilations and throttling below them."""
    run = analysis.run
    times = result_of(analysis, "steps", StepTimes)
    if run is None or times is None:
        return Part(_IDENTITY, _TITLE, absent=why_absent(analysis, "steps"))
    clock = result_of(analysis, "wall_clock", WallClock)
    sections = (*times.sections(), *(clock.sections() if clock else ()))
    ranges = list_ranges(run)
    if not ranges:
        reason = "Nothing to draw: no step's time is known, because the beginning of none was recorded."
        return Part(_IDENTITY, _TITLE, reason, sections=sections)
    chart, note = _chart_times(ranges, times, len(times.ranks))
    happenings = _chart_happenings(run, analysis)
    if happenings is not None:
        chart = replace(chart, x=Values("", low=ranges[0].step - 0.5, high=ranges[-1].step + 0.5))
    figure = Figure((chart, *([happenings] if happenings else [])), _table(ranges))
    return Part(_IDENTITY, _TITLE, f"{_describe(times)} {note}".strip(), (figure,), sections)


def list_ranges(run: Run) -> list[StepRange]:
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
    return [StepRange(step, *(time_ns / NS_PER_MS for time_ns in (*spans[step], job_ns))) for step, job_ns in times]


def _describe(times: StepTimes) -> str:
    ranks = f"{len(times.ranks)} rank{'s' * (len(times.ranks) > 1)}"
    if times.step_time_s is None or times.median_s is None:
        return f"{times.count} steps on {ranks}; too few of them are in steady state for a step time."
    return (
        f"{times.count} steps on {ranks}; in steady state the step time is {times.step_time_s * MS_PER_S:,.1f} ms, the "
        f"median {times.median_s * MS_PER_S:,.1f} ms."
    )


def _chart_times(ranges: Sequence[StepRange], times: StepTimes, ranks: int) -> tuple[Chart, str]:
    middle = times.median_s * MS_PER_S if times.median_s else median(step.job for step in ranges)
    high = max((step.slowest for step in ranges if step.slowest <= _HIGHEST * middle), default=middle)
    above = [step for step in ranges if step.job > _HIGHEST * middle]
    top = high * 1.08
    marks: list[Mark] = []
    edges = bucket_edges(len(ranges), _MOST_POINTS)
    buckets = [ranges[first:end] for first, end in edges]
    if ranks > 1 or len(buckets) < len(ranges):
        label = "fastest to slowest rank" if len(buckets) == len(ranges) else "fastest to slowest of neighbouring steps"
        area = tuple(
            (
                float(bucket[0].step),
                min(*(step.fastest for step in bucket), top),
                min(max(step.slowest for step in bucket), top),
            )
            for bucket in buckets
        )
        marks.append(Area(label, Colour.FIRST, area))
    middles = tuple((float(bucket[0].step), min(median(step.job for step in bucket), top)) for bucket in buckets)
    marks.append(Line("the job" if ranks > 1 else "step", Colour.FIRST, middles))
    if len(buckets) == len(ranges):
        tips = tuple(f"step {step.step}: {step.job:,.2f} ms" for step in ranges)
        marks.append(Dots("", Colour.FIRST, middles, tips))
    if above:
        tips = tuple(f"step {step.step}: {step.job:,.1f} ms" for step in above)
        points = tuple((float(step.step), top) for step in above)
        marks.append(Dots("beyond the axis", Colour.WORSE, points[:_MOST_POINTS], tips[:_MOST_POINTS]))
    ends = (float(ranges[0].step), float(ranges[-1].step))
    marks.append(Line("median in steady state", Colour.QUIET, tuple((x, middle) for x in ends), is_dashed=True))
    chart = Chart(
        "Time of each step",
        f"Times of {len(ranges)} steps in milliseconds, around a median of {middle:.1f} ms.",
        Values("step", low=ranges[0].step - 0.5, high=ranges[-1].step + 0.5),
        Values("ms", low=0, high=top),
        tuple(marks),
    )
    return chart, _describe_above(above)


def _describe_above(above: Sequence[StepRange]) -> str:
    if not above:
        return ""
    named = ", ".join(f"{step.step} ({step.job:,.0f} ms)" for step in above[:_MOST_NAMED])
    rest = f" and {len(above) - _MOST_NAMED} more" if len(above) > _MOST_NAMED else ""
    return f"Beyond the axis: step {named}{rest}."


def _chart_happenings(run: Run, analysis: Analysis) -> Chart | None:
    """A row for each thing that happens beside training, where one did."""
    tables = find_undisturbed(run.steps).tables
    rows: list[tuple[str, Colour, list[int]]] = []
    for name, colour, select in _HAPPENINGS:
        steps = sorted({step for table in tables for step in table.step[select(table)].tolist()})
        if steps:
            rows.append((name, colour, steps))
    throttling = result_of(analysis, "throttling", Throttling)
    throttled = sorted({step for gpu in throttling.gpus for step in gpu.steps}) if throttling else []
    if throttled:
        rows.append(("throttled GPU", Colour.WORSE, throttled))
    if not rows:
        return None
    marks = tuple(
        Spans("", colour, tuple(_spans(index, name, steps))) for index, (name, colour, steps) in enumerate(rows)
    )
    description = "; ".join(f"{name} in steps {format_ranges(steps, 12)}" for name, _, steps in rows)
    names = tuple(name for name, _, _ in rows)
    return Chart("What else happened", f"{description}.", Values("step"), Categories("", names), marks, row_height=16)


def _spans(row: int, name: str, steps: Sequence[int]) -> Iterator[Span]:
    """Neighbouring steps as one span."""
    first = previous = steps[0]
    for step in (*steps[1:], None):
        if step is None or step != previous + 1:
            tip = f"{name}: step{'s' * (previous > first)} {format_ranges(range(first, previous + 1))}"
            yield Span(row, first - 0.5, previous + 0.5, tip)
            first = step or 0
        previous = step or 0


def _table(ranges: Sequence[StepRange]) -> Section:
    columns = (
        Column("Step"),
        Column("The job (ms)", 3),
        Column("Slowest rank (ms)", 3),
        Column("Fastest rank (ms)", 3),
    )
    rows: list[tuple[Cell, ...]] = [(step.step, step.job, step.slowest, step.fastest) for step in ranges]
    return Section("Time of each step", columns, tuple(rows))
