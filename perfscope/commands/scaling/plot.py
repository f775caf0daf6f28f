"""The plot of a scaling study: measured medians, the ideal line, and the fitted laws."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.scaling.sections import chart_study
from perfscope.analyzers.scaling.study import Scaling
from perfscope.charts.svg import draw_file
from perfscope.files import replace_file


def write_plot(study: Scaling, path: Path | None) -> tuple[str, ...]:
    """Draw a study to an SVG file; returns the notes of the command."""
    if path is None:
        return ()
    if not study.series:
        return (f"note: {path} is not written, because no set-up was run on two different numbers of GPUs",)
    replace_file(path, draw_file([chart_study(study)]).encode())
    return (f"wrote {path}",)
