"""What notebooks show besides tables: the charts of results, and pages. Loaded when a notebook asks for it."""

from __future__ import annotations

import os
from base64 import b64encode
from html import escape
from pathlib import Path

from perfscope.analyzers.compare.comparison import Comparison
from perfscope.charts.svg import draw_file
from perfscope.engine.inputs import Inputs
from perfscope.engine.run import Analysis, Plan
from perfscope.files import replace_file
from perfscope.page import analyze_for_page, build_comparison_page, build_page
from perfscope.page.build import draw_result


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
    title, figures = draw_result(name, analysis)
    return "".join(
        _image(draw_file(figure.charts), title) for figure in figures if any(chart.marks for chart in figure.charts)
    )


def _image(svg: str, title: str) -> str:
    """An image of its own: its style must not reach into the notebook."""
    encoded = b64encode(svg.encode()).decode()
    return f'<p><img style="max-width:100%" alt="{escape(title)}" src="data:image/svg+xml;base64,{encoded}"></p>'
