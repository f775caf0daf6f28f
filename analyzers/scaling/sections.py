"""The sections of a scaling report, for people, and the data of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from perfscope.analyzers.scaling.dlperf import ProtocolResult
from perfscope.analyzers.scaling.fits import Fit
from perfscope.analyzers.scaling.study import Scaling, Series, ZeroStage
from perfscope.analyzers.shared.statistics import count_values
from perfscope.charts.grammar import Chart, Dots, Line, Scale, Values
from perfscope.charts.palette import SERIES, Colour
from perfscope.constants import MIB
from perfscope.report import Cell, Column, Json, Section, in_unit, percent, percent_of
from perfscope.tables.scaling import ScalingRun

_CURVE_POINTS = 60


def chart_study(study: Scaling) -> Chart:
    """Throughput over GPUs, on logarithmic axes."""
    ticks = sorted({float(point.cluster.gpus) for series in study.series for point in series.points})
    return Chart(
        "Throughput over GPUs",
        f"Samples per second of {len(study.series)} series on {len(ticks)} numbers of GPUs.",
        Values("GPUs", Scale.LOGARITHMIC, ticks=tuple(ticks)),
        Values("samples/s", Scale.LOGARITHMIC),
        tuple(_list_marks(study)),
        height=340,
    )


def _list_marks(study: Scaling) -> Iterator[Line | Dots]:
    """Measured medians, the ideal line from the baseline, and every law up to the largest prediction."""
    for index, series in enumerate(study.series):
        baseline, last = series.points[0], series.points[-1]
        measured = tuple((float(point.cluster.gpus), point.median) for point in series.points)
        tips = tuple(f"{point.cluster.gpus} GPUs: {point.median:,.2f} samples/s" for point in series.points)
        yield Dots(_label_series(series, study), SERIES[index % len(SERIES)], measured, tips)
        predicted = [prediction.gpus for fit in series.fits for prediction in fit.predictions]
        largest = float(max([last.cluster.gpus, *predicted]))
        ideal = (
            (float(baseline.cluster.gpus), baseline.median),
            (largest, baseline.median * largest / baseline.cluster.gpus),
        )
        yield Line("ideal", Colour.QUIET, ideal, is_dashed=True)
        gpus = np.geomspace(baseline.cluster.gpus, largest, _CURVE_POINTS)
        for offset, fit in enumerate(series.fits, 1):
            if fit.reason is None:
                points = tuple(zip(gpus.tolist(), fit.throughput(gpus).tolist(), strict=True))
                yield Line(fit.law, SERIES[(index + offset) % len(SERIES)], points, is_dashed=True)


def _label_series(series: Series, study: Scaling) -> str:
    """The model, and the properties in which the series differ."""
    setup = series.setup
    if len(study.series) == 1:
        return setup.model
    rest = [compared for compared in study.series if compared is not series]
    parts = [setup.model]
    if setup.precision and any(compared.setup.precision != setup.precision for compared in rest):
        parts.append(setup.precision)
    if setup.seq_len and any(compared.setup.seq_len != setup.seq_len for compared in rest):
        parts.append(f"sequence {setup.seq_len}")
    if setup.zero_stage is not None and any(compared.setup.zero_stage != setup.zero_stage for compared in rest):
        parts.append(f"ZeRO {setup.zero_stage}")
    if any(compared.kind is not series.kind for compared in rest):
        parts.append(str(series.kind))
    if series.constant is not None and any(
        (compared.setup, compared.kind) == (setup, series.kind) for compared in rest
    ):
        parts.append(f"batch {series.constant:g}")
    return ", ".join(part for part in parts if part)


_FOUR_DIGITS = 10_000

_LAW_NAMES = {
    "amdahl": "Amdahl (fixed work)",
    "gustafson": "Gustafson (growing work)",
    "usl": "Universal scalability law",
}


def protocol_section(result: ProtocolResult) -> Section:
    """The benchmark's own table, with efficiency."""
    columns = (
        Column("Model"),
        Column("node_num"),
        Column("gpu_num"),
        Column("batch_size_per_device"),
        Column("runs"),
        Column("average_speed", 2),
        Column("samples/s", 2),
        Column("speedup", 2),
        Column("efficiency (%)", 1),
    )
    rows = tuple(
        (
            model,
            speed.cluster.nodes,
            speed.cluster.gpus,
            speed.batch_per_gpu,
            len(speed.runs),
            speed.average,
            speed.median,
            speed.speedup,
            None if speed.speedup is None else percent(speed.speedup / speed.cluster.gpus),
        )
        for model, speeds in result.speeds.items()
        for speed in speeds
    )
    notes = ("samples/s is the median of the runs; each run is the mean over iterations 101 to 200.",)
    return Section("Speed", columns, rows, notes)


def series_sections(scaling: Scaling) -> Iterator[Section]:
    """A table for each series."""
    columns = (
        Column("Nodes"),
        Column("GPUs"),
        Column("Global batch"),
        Column("Runs"),
        Column("Samples/s", 2),
        Column("95 % interval"),
        Column("Speed-up", 2),
        Column("Efficiency (%)", 1),
    )
    for series in scaling.series:
        rows = []
        for point in series.points:
            interval = count_values(point.speeds).median_interval()
            rows.append(
                (
                    point.cluster.nodes,
                    point.cluster.gpus,
                    point.batch,
                    len(point.speeds),
                    point.median,
                    None if interval is None else f"{interval[0]:.5g} to {interval[1]:.5g}",
                    point.speedup,
                    percent(point.efficiency),
                )
            )
        note = f"Baseline {series.points[0].cluster}; samples/s is the median of the runs."
        yield Section(series.title, columns, tuple(rows), (note,))


def law_sections(scaling: Scaling) -> Iterator[Section]:
    """All fits of all series."""
    columns = (
        Column("Series"),
        Column("Law"),
        Column("Parameters"),
        Column("Error (%)", 2),
        Column("Peak (GPUs)", 0),
        Column("Prediction"),
    )
    rows = tuple(
        (series.title, _LAW_NAMES[fit.law], _parameters(fit), percent(fit.error), fit.peak_gpus, _predictions(fit))
        for series in scaling.series
        for fit in series.fits
    )
    if rows:
        notes = (
            "Least squares on relative errors of the medians; 95 % intervals by Student's t over configurations, whose "
            "repeats share their error; a prediction's interval is that of what runs would measure.",
            *_list_reasons(scaling),
        )
        yield Section("Scaling laws", columns, rows, notes)


def zero_sections(rows: Sequence[ZeroStage]) -> Iterator[Section]:
    """Memory, utilisation and throughput of ZeRO stages."""
    columns = (
        Column("test_desc"),
        Column("xn_xg_xdp_xmp_xbs"),
        Column("gpu_mem (MiB)"),
        Column("gpu_util (%)", 0),
        Column("throughput (samples/s)"),
    )
    if rows:
        table = tuple(
            (
                f"zero-stage-{row.stage}",
                row.name,
                _with_change(row.memory_bytes, MIB, row.memory_change, row.memory_saved_bytes),
                row.util_percent,
                _with_change(row.samples_per_s, 1, row.samples_change, None),
            )
            for row in rows
        )
        note = "Changes are against stage 0; memory is the peak in use on any GPU, utilisation a mean."
        yield Section("ZeRO stages", columns, table, (note,))


def memory_sections(runs: Sequence[ScalingRun]) -> Iterator[Section]:
    """Memory in use for each batch size, and runs out of memory."""
    columns = (
        Column("Set-up"),
        Column("Model"),
        Column("Batch per GPU", 0),
        Column("Used (MiB)", 0),
        Column("Total (MiB)", 0),
        Column("Used (%)", 1),
        Column("Out of memory"),
    )
    rows = []
    for run in sorted(runs, key=lambda run: (run.model, run.cluster.gpus, run.batch_per_gpu or 0)):
        if run.device is None and not run.out_of_memory:
            continue
        used = run.device.memory_used_bytes if run.device else None
        total = run.device.memory_total_bytes if run.device else None
        rows.append(
            (
                run.name,
                run.model,
                run.batch_per_gpu,
                in_unit(used, MIB),
                in_unit(total, MIB),
                percent_of(used, total) if used is not None and total else None,
                "OOM" if run.out_of_memory else "no",
            )
        )
    if rows:
        yield Section("Memory", columns, tuple(dict.fromkeys(rows)))


def run_data(run: ScalingRun) -> dict[str, Json]:
    """One run for JSON."""
    return {
        "path": run.path,
        "case": str(run.cluster),
        "xn_xg_xdp_xmp_xbs": run.name,
        "model": run.model,
        "global_batch_size": run.batch,
        "batch_size_per_device": run.batch_per_gpu,
        "zero_stage": run.zero_stage,
        "samples_per_s": run.samples_per_s,
        "memory_used_bytes": run.device.memory_used_bytes if run.device else None,
        "memory_total_bytes": run.device.memory_total_bytes if run.device else None,
        "gpu_util_percent": run.device.util_percent if run.device else None,
        "oom": run.out_of_memory,
    }


def _parameters(fit: Fit) -> str:
    if fit.reason is not None:
        return fit.reason
    return ", ".join(f"{name} {value:.4g}{_interval(fit, name)}" for name, value in fit.parameters.items())


def _interval(fit: Fit, name: str) -> str:
    interval = fit.intervals[name]
    return "" if interval is None else f" ({interval[0]:.4g} to {interval[1]:.4g})"


def _predictions(fit: Fit) -> Cell:
    texts = []
    for prediction in fit.predictions:
        bounds = prediction.interval
        if bounds is None:
            texts.append(f"{prediction.gpus} GPUs: cannot tell")
        else:
            interval = f"{_shorten(bounds[0])} to {_shorten(bounds[1])}"
            texts.append(f"{prediction.gpus} GPUs: {_shorten(prediction.samples_per_s)} ({interval})")
    return "; ".join(texts) or None


def _list_reasons(scaling: Scaling) -> Iterator[str]:
    """Why predictions cannot be told, each reason once."""
    reasons: dict[str, list[str]] = {}
    for series in scaling.series:
        for fit in series.fits:
            for prediction in fit.predictions:
                if prediction.reason is not None:
                    laws = reasons.setdefault(f"{prediction.gpus} GPUs: {prediction.reason}", [])
                    laws.extend({_LAW_NAMES[fit.law]} - set(laws))
    for reason, laws in reasons.items():
        yield f"Cannot tell ({', '.join(laws)}), {reason}."


def _shorten(value: float) -> str:
    """Four digits, or all before the decimal point."""
    return f"{value:.4g}" if value < _FOUR_DIGITS else f"{value:.0f}"


def _with_change(value: float | None, unit: int, change: float | None, saving: int | None) -> Cell:
    if value is None:
        return None
    text = f"{value / unit:.5g}"
    if change is None:
        return text
    arrow = "↓" if change < 0 else "↑"
    difference = f"{saving / unit:.0f}, " if saving is not None and saving > 0 else ""
    return f"{text} ({difference}{arrow}{percent(abs(change)):.1f}%)"
