"""The chart of a scaling study: measured medians, the ideal line, and the fitted laws."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfscope.analyzers.scaling.study import Scaling, Series
from perfscope.charts.grammar import Chart, Dots, Line, Scale, Values
from perfscope.charts.palette import SERIES, Colour

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
