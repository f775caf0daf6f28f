"""The page of a run. Loaded when it is asked for."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

from perfscope.engine.inputs import Inputs
from perfscope.engine.run import Plan
from perfscope.files import replace_file
from perfscope.page import analyze_for_page, build_page


class Page:
    """A run on one HTML page that needs no network; a notebook shows it in a frame.

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
