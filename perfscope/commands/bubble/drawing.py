"""What predicted and measured bubbles share: the headline, and the drawing of the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from perfscope.charts.svg import draw_file
from perfscope.commands.options.common import require_svg
from perfscope.errors import UsageError
from perfscope.files import replace_file
from perfscope.report import percent
from perfscope.schedules.drawing import GanttChart, to_charts


def headline(share: Fraction | None, title: str) -> str:
    """The title of a report, with the bubble where it is known."""
    return title if share is None else f"{percent(share):.2f} % of the time is bubble: {title}"


def write_charts(charts: Sequence[GanttChart], path: Path) -> tuple[str, ...]:
    """Draw charts to an SVG file; returns the notes of the command.

    Raises:
        UsageError: The file is no SVG, or there is no chart.
        SourceError: The file cannot be written.
    """
    require_svg(path)
    if not charts:
        raise UsageError("the step is too large to simulate, so there is no drawing", hint="use fewer micro-batches")
    replace_file(path, draw_file(to_charts(charts)).encode())
    return (f"wrote {path}",)
