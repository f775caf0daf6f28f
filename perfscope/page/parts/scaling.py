"""The scaling curve: throughput over GPUs, with the laws that were fitted to it."""

from __future__ import annotations

from perfscope.analyzers.scaling.sections import chart_study, law_sections, series_sections
from perfscope.analyzers.scaling.study import Scaling
from perfscope.page.part import Figure, Part
from perfscope.report import Cell, Column, Section

_IDENTITY, _TITLE = "scaling", "Scaling"


def show_scaling(study: Scaling | None) -> Part:
    """Measured medians, the ideal line, and every law."""
    if study is None:
        reason = (
            "Nothing to show: one run has one number of GPUs. `perfscope page` draws the curve of several runs on "
            "different numbers of GPUs."
        )
        return Part(_IDENTITY, _TITLE, absent=reason)
    sections = (*series_sections(study), *law_sections(study))
    if not study.series:
        reason = "Nothing to draw: no set-up was run on two different numbers of GPUs."
        return Part(_IDENTITY, _TITLE, reason, sections=sections)
    columns = (Column("Model"), Column("GPUs"), Column("Samples/s", 3))
    rows: list[tuple[Cell, ...]] = [
        (series.setup.model, point.cluster.gpus, point.median) for series in study.series for point in series.points
    ]
    figure = Figure((chart_study(study),), Section("Throughput over GPUs", columns, tuple(rows)))
    return Part(_IDENTITY, _TITLE, "Measured medians, the ideal line, and the fitted laws.", (figure,), sections)
