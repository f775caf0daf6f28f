"""What notebooks show besides tables: the charts of results, and pages. Loaded when a notebook asks for it."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable
from html import escape
from pathlib import Path

from perfscope.analyzers.comparison.comparison import Comparison
from perfscope.charts.svg import draw_file
from perfscope.engine.inputs import Inputs
from perfscope.engine.run import Analysis, Plan
from perfscope.files import replace_file
from perfscope.page import analyze_for_page, build_comparison_page, build_page
from perfscope.page.part import Figure, Part
from perfscope.page.parts.breakdown import show_breakdown
from perfscope.page.parts.communication import show_collectives, show_overlap, show_stragglers
from perfscope.page.parts.gpus import show_gpus
from perfscope.page.parts.kernels import show_kernels
from perfscope.page.parts.pipeline import show_pipeline
from perfscope.page.parts.steps import show_steps

#: The part of the page that has the charts of a result.
_PARTS: dict[str, Callable[[Analysis], Part]] = {
    "steps": show_steps,
    "breakdown": show_breakdown,
    "overlap": show_overlap,
    "collectives": show_collectives,
    "stragglers": show_stragglers,
    "gpus": show_gpus,
    "kernels": show_kernels,
    "pipeline_bubble": show_pipeline,
}


class Page:
    """A run or a comparison on one HTML page that needs no network; a notebook shows it in a frame.

    Attributes:
        html: The page.
    """

    def __init__(self, html: str) -> None:
        self.html = html

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, and return its path.

        Raises:
            SourceError: The file cannot be written.
        """
        target = Path(path)
        replace_file(target, self.html.encode())
        return target

    def __repr__(self) -> str:
        return f"<page of {len(self.html):,} characters>"

    def _repr_html_(self) -> str:
        frame = '<iframe title="perfscope" style="width:100%;height:40rem;border:0" srcdoc="{}"></iframe>'
        return frame.format(escape(self.html))


def build_run_page(inputs: Inputs, plan: Plan) -> Page:
    """The page of a run, or of traces."""
    return Page(build_page(analyze_for_page(inputs, plan)))


def build_page_of_two(comparison: Comparison) -> Page:
    """The page of a comparison."""
    return Page(build_comparison_page(comparison))


def draw_charts(name: str, analysis: Analysis) -> str:
    """The charts of a result as images in HTML; ``""`` where it has none."""
    if name not in _PARTS:
        return ""
    part = _PARTS[name](analysis)
    return "".join(_image(draw_file(figure.charts), part.title) for figure in part.figures if _is_drawn(figure))


def _is_drawn(figure: Figure) -> bool:
    return any(chart.marks for chart in figure.charts)


def _image(svg: str, title: str) -> str:
    """An image of its own: its style must not reach into the notebook."""
    encoded = b64encode(svg.encode()).decode()
    return f'<p><img style="max-width:100%" alt="{escape(title)}" src="data:image/svg+xml;base64,{encoded}"></p>'
