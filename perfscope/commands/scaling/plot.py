"""The plot of a scaling study: measured medians, the ideal line, and the fitted laws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from perfscope.analyzers.scaling.study import Scaling, Series
from perfscope.files import replace_file
from perfscope.renderers.chart import Curve, to_chart

#: Index of grey in the chart's palette.
_GREY = 6
_CURVE_POINTS = 60


def write_plot(study: Scaling, path: Path | None) -> tuple[str, ...]:
    """Draw a study to an SVG file; returns the notes of the command."""
    if path is None:
        return ()
    if not study.series:
        return (f"note: {path} is not written, because no set-up was run on two different numbers of GPUs",)
    replace_file(path, to_chart("Throughput over GPUs", "GPUs", "samples/s", list(_list_curves(study))).encode())
    return (f"wrote {path}",)


def _list_curves(study: Scaling) -> Iterator[Curve]:
    """Measured medians, the ideal line from the baseline, and every law up to the largest prediction."""
    for index, series in enumerate(study.series):
        baseline, last = series.points[0], series.points[-1]
        measured = tuple((float(point.cluster.gpus), point.median) for point in series.points)
        yield Curve(_label_series(series, study), measured, marked=True, colour=index)
        predicted = [prediction.gpus for fit in series.fits for prediction in fit.predictions]
        largest = float(max([last.cluster.gpus, *predicted]))
        ideal = (
            (float(baseline.cluster.gpus), baseline.median),
            (largest, baseline.median * largest / baseline.cluster.gpus),
        )
        yield Curve("ideal", ideal, dashed=True, colour=_GREY)
        gpus = np.geomspace(baseline.cluster.gpus, largest, _CURVE_POINTS)
        for offset, fit in enumerate(series.fits, 1):
            if fit.reason is None:
                points = zip(gpus.tolist(), fit.throughput(gpus).tolist(), strict=True)
                yield Curve(fit.law, tuple(points), dashed=True, colour=index + offset)


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
