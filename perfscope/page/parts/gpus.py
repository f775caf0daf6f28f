"""The GPUs by NVML: power, clock, utilisation, temperature and memory over the same seconds as the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.energy import Energy
from perfscope.analyzers.gpus import Gpus
from perfscope.analyzers.shared.gpu_steps import UsedGpu, step_intervals_ns, used_gpus
from perfscope.analyzers.throttling import Throttling
from perfscope.charts.grammar import Area, Categories, Chart, Line, Mark, Shades, Span, Spans, Values
from perfscope.charts.palette import SERIES, Colour
from perfscope.constants import GB, MS_PER_S, NS_PER_MS, NS_PER_S
from perfscope.engine.run import Analysis
from perfscope.errors import MissingInput
from perfscope.page.part import Figure, Part, rank_name, result_of, why_absent
from perfscope.page.selection import bucket_edges
from perfscope.report import Cell, Column, Section
from perfscope.tables.columns import MaskedInt64, present
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.run import Run

_IDENTITY, _TITLE = "gpus", "GPUs under the steps"
_MOST_LINES = 6
_MOST_POINTS = 400
_MOST_STEPS = 1_500
_PANEL = 84


@dataclass(frozen=True, slots=True, eq=False)
class _Counter:
    """One of NVML's values on all GPUs: for each its seconds and its values."""

    label: str
    lines: tuple[tuple[str, list[float], list[float]], ...]


def show_gpus(analysis: Analysis) -> Part:
    """NVML's samples below the steps, on one axis of seconds."""
    gpus, run = result_of(analysis, "gpus", Gpus), analysis.run
    if gpus is None or run is None:
        return Part(_IDENTITY, _TITLE, absent=why_absent(analysis, "gpus"))
    results = (gpus, result_of(analysis, "energy", Energy), result_of(analysis, "throttling", Throttling))
    sections = tuple(section for result in results if result for section in result.sections())
    try:
        used = used_gpus(run)
    except MissingInput as missing:
        return Part(_IDENTITY, _TITLE, f"Nothing to draw: {missing.problem}.", sections=sections)
    counters = [counter for counter in map(_read_counter, *_columns(used)) if counter is not None]
    if not counters:
        return Part(_IDENTITY, _TITLE, "Nothing to draw: the samples hold no values.", sections=sections)
    windows = _windows(run, used[0])
    charts = (
        _steps_chart(used[0], windows),
        *(_chart(counter, windows, is_first=index == 0) for index, counter in enumerate(counters)),
    )
    charts = (*charts[:-1], _with_label(charts[-1]))
    lead = f"Seconds since the first step of each host. The marked stretches are profiler windows. {_describe(used)}"
    return Part(_IDENTITY, _TITLE, lead.strip(), (Figure(charts, _table(counters)),), sections)


def _describe(used: Sequence[UsedGpu]) -> str:
    if len(used) <= _MOST_LINES:
        return ""
    return f"Of {len(used)} GPUs the middle half is a band around their median, within the band of all."


def _origin_ns(gpu: UsedGpu) -> int:
    starts, _, _ = step_intervals_ns(gpu.steps)
    return int(starts[0]) if len(starts) else int(gpu.steps.end_ns[0])


def _around(gpu: UsedGpu) -> tuple[int, int]:
    """From shortly before the first step to shortly after the last one."""
    first_ns, last_ns = _origin_ns(gpu), int(gpu.steps.end_ns[-1])
    beside_ns = max((last_ns - first_ns) // 20, NS_PER_S // 2)
    return first_ns - beside_ns, last_ns + beside_ns


def _columns(used: Sequence[UsedGpu]) -> tuple[list[str], list[float], list[list[tuple[UsedGpu, MaskedInt64]]]]:
    def column(select: str) -> list[tuple[UsedGpu, MaskedInt64]]:
        return [(gpu, getattr(gpu.samples, select)) for gpu in used]

    names = [field for field in GpuSamples.__slots__ if field in _UNITS]
    names.sort(key=list(_UNITS).index)
    return [_UNITS[name][0] for name in names], [_UNITS[name][1] for name in names], [column(name) for name in names]


_UNITS: dict[str, tuple[str, float]] = {
    "power_mw": ("power (W)", MS_PER_S),
    "sm_clock_mhz": ("SM clock (MHz)", 1),
    "util_percent": ("utilisation (%)", 1),
    "temperature_c": ("temperature (°C)", 1),
    "memory_used_bytes": ("memory (GB)", GB),
}


def _read_counter(label: str, unit: float, columns: list[tuple[UsedGpu, MaskedInt64]]) -> _Counter | None:
    lines = []
    for gpu, column in columns:
        first_ns, last_ns = _around(gpu)
        rows = np.flatnonzero(present(column) & (gpu.samples.t_ns >= first_ns) & (gpu.samples.t_ns <= last_ns))
        if len(rows):
            seconds = (gpu.samples.t_ns[rows] - _origin_ns(gpu)) / NS_PER_S
            name = rank_name(gpu.ranks[0]) if len(gpu.ranks) == 1 else f"ranks {gpu.ranks[0]}-{gpu.ranks[-1]}"
            lines.append((name, seconds.tolist(), (np.asarray(column.data)[rows] / unit).tolist()))
    return _Counter(label, tuple(lines)) if lines else None


def _windows(run: Run, gpu: UsedGpu) -> Shades:
    origin_ns = _origin_ns(gpu)
    steps = gpu.steps
    ranges = []
    for window in run.windows:
        rows = np.flatnonzero((steps.step >= window.first_step) & (steps.step <= window.last_step))
        if window.rank == gpu.ranks[0] and len(rows):
            first, last = int(steps.end_ns[rows[0]]), int(steps.end_ns[rows[-1]])
            wall_ns = steps.wall_ns[rows[0]]
            first -= 0 if wall_ns is np.ma.masked else int(wall_ns)
            tip = f"profiler window: steps {window.first_step}-{window.last_step}"
            ranges.append(((first - origin_ns) / NS_PER_S, (last - origin_ns) / NS_PER_S, tip))
    return Shades("profiler window", Colour.COPY, tuple(ranges))


def _steps_chart(gpu: UsedGpu, windows: Shades) -> Chart:
    """The steps of one rank as spans of time, of which neighbours differ."""
    starts, ends, rows = step_intervals_ns(gpu.steps)
    origin_ns = _origin_ns(gpu)
    numbers = gpu.steps.step[rows].tolist()
    spans: tuple[list[Span], list[Span]] = ([], [])
    for first, last in bucket_edges(len(numbers), _MOST_STEPS):
        start, end = (int(starts[first]) - origin_ns) / NS_PER_S, (int(ends[last - 1]) - origin_ns) / NS_PER_S
        name = f"step {numbers[first]}" if last - first == 1 else f"steps {numbers[first]}-{numbers[last - 1]}"
        tip = f"{name}: {(int(ends[last - 1]) - int(starts[first])) / NS_PER_MS:,.1f} ms"
        spans[first % 2].append(Span(0, start, end, tip, str(numbers[first]) if last - first == 1 else ""))
    name = f"steps of {rank_name(gpu.ranks[0])}"
    marks: tuple[Mark, ...] = (
        *([windows] if windows.ranges else []),
        Spans("", Colour.FIRST, tuple(spans[0])),
        Spans("", Colour.BESIDE, tuple(spans[1])),
    )
    description = f"When each of {len(numbers)} steps ran, in seconds."
    return Chart("GPUs under the steps", description, Values(""), Categories("", (name,)), marks, row_height=22)


def _chart(counter: _Counter, windows: Shades, *, is_first: bool) -> Chart:
    """One counter; the legend of the first one counts for all."""
    marks: list[Mark] = [Shades("", windows.colour, windows.ranges)] if windows.ranges else []
    if len(counter.lines) <= _MOST_LINES:
        marks += [
            Line(name if is_first else "", SERIES[index % len(SERIES)], _thin(seconds, values))
            for index, (name, seconds, values) in enumerate(counter.lines)
        ]
    else:
        marks += _bands(counter, ("all GPUs", "middle half", "median") if is_first else ("", "", ""))
    least = min(min(values) for _, _, values in counter.lines)
    low = None if "clock" in counter.label or "temperature" in counter.label else min(0.0, least)
    description = f"{counter.label} of {len(counter.lines)} GPUs over the seconds of training."
    return Chart(counter.label, description, Values(""), Values("", low=low), tuple(marks), height=_PANEL)


def _with_label(chart: Chart) -> Chart:
    return Chart(
        chart.title, chart.description, Values("seconds since the first step"), chart.y, chart.marks, chart.row_height,
        chart.height,
    )  # fmt: skip


def _thin(seconds: Sequence[float], values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Means of neighbouring samples, where there are more than can be told apart."""
    return tuple(
        (sum(seconds[first:last]) / (last - first), sum(values[first:last]) / (last - first))
        for first, last in bucket_edges(len(seconds), _MOST_POINTS)
    )


def _bands(counter: _Counter, labels: tuple[str, str, str]) -> list[Mark]:
    first = min(seconds[0] for _, seconds, _ in counter.lines)
    last = max(seconds[-1] for _, seconds, _ in counter.lines)
    grid = np.linspace(first, last, _MOST_POINTS // 2)
    table = np.array([np.interp(grid, seconds, values) for _, seconds, values in counter.lines])
    low, quarter, middle, three, high = np.quantile(table, (0, 0.25, 0.5, 0.75, 1), axis=0).tolist()
    x = grid.tolist()
    return [
        Area(labels[0], Colour.FIRST, tuple(zip(x, low, high, strict=True))),
        Area(labels[1], Colour.FIRST, tuple(zip(x, quarter, three, strict=True))),
        Line(labels[2], Colour.FIRST, tuple(zip(x, middle, strict=True))),
    ]


def _table(counters: Sequence[_Counter]) -> Section:
    columns = (
        Column("GPU of"), Column("Counter"), Column("Samples"), Column("Least", 1), Column("Mean", 1),
        Column("Most", 1),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (name, counter.label, len(values), min(values), sum(values) / len(values), max(values))
        for counter in counters
        for name, _, values in counter.lines
    ]
    return Section("NVML's samples", columns, tuple(rows))
