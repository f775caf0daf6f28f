"""Two runs compared in Python, and the report of any number of comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.compare.change import CONFIDENCE
from perfscope.analyzers.compare.comparison import Comparison, parse_limit
from perfscope.analyzers.compare.comparison import compare_sides as compare_two
from perfscope.analyzers.compare.report import describe_verdict, shorten, summarize, to_data, to_sections
from perfscope.analyzers.compare.side import Side
from perfscope.engine.run import Plan
from perfscope.engine.sides import read_side
from perfscope.renderers import Format, render
from perfscope.renderers.html import render_lines, render_sections
from perfscope.report import Json, Report

if TYPE_CHECKING:
    from perfscope.api.shown import Page

#: GitHub refuses longer comments and cuts longer summaries.
LONGEST_MARKDOWN = 65_536
#: Loaded by name when a page is asked for.
_SHOWN = "perfscope.api.shown"
_ROWS = (25, 12, 6, 3, 1)
_MOST_DAMAGE = 20
_MANY_SCHEMA = "perfscope/comparisons/1"


class ComparedRuns:
    """B compared with A; it shows itself in a notebook, and ``str(compared)`` is markdown.

    Attributes:
        comparison: The comparison behind it.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    @property
    def verdict(self) -> str:
        """``slower``, ``faster``, ``same`` or ``incomparable``."""
        return str(self.comparison.verdict)

    @property
    def data(self) -> dict[str, Any]:
        """All of it as ``perfscope compare --format json`` gives it; docs/compare.md names the keys."""
        data: dict[str, Any] = to_data(self.comparison)
        return data

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is missing or damaged on either side, as sentences."""
        return self.comparison.damage

    def report(self) -> Report:
        """The report that ``perfscope compare`` prints, as a neutral document."""
        return to_report([self], is_markdown=True)

    def page(self) -> Page:
        """The page of ``perfscope export A B``: what the difference is made of. ``save`` writes it."""
        page: Page = import_module(_SHOWN).build_page_of_two(self.comparison)
        return page

    def __str__(self) -> str:
        return render(self.report(), Format.MARKDOWN)

    def __repr__(self) -> str:
        return f"<{describe_verdict(self.comparison)}>"

    def _repr_html_(self) -> str:
        report = self.report()
        return render_lines([report.title, *report.warnings]) + render_sections(report.sections)


def compare_locations(
    a: str, b: str, *, anyway: bool, limits: Sequence[str], between_runs: float | None, operators: bool
) -> ComparedRuns:
    """Compare what two locations hold; see ``OpenedRun.compare``."""
    sides = [read_side(location, Plan(with_operators=operators)) for location in (a, b)]
    return compare_sides(sides, anyway=anyway, limits=limits, between_runs=between_runs)[0]


def compare_sides(
    sides: Sequence[Side], *, anyway: bool = False, limits: Sequence[str] = (), between_runs: float | None = None
) -> tuple[ComparedRuns, ...]:
    """Compare each further side with the first one; all intervals hold together with the stated confidence.

    Raises:
        UsageError: A limit cannot be understood.
    """
    parsed = [parse_limit(text) for text in limits]
    first, *following = sides
    confidence = 1 - (1 - CONFIDENCE) / max(len(following), 1)
    return tuple(
        ComparedRuns(
            compare_two(first, second, anyway=anyway, limits=parsed, confidence=confidence, between_runs=between_runs)
        )
        for second in following
    )


def to_report(compared: Sequence[ComparedRuns], *, is_markdown: bool) -> Report:
    """Write comparisons as the neutral document; as markdown it fits a summary or a comment of GitHub."""
    comparisons = [runs.comparison for runs in compared]
    report = _report(comparisons, _ROWS[0])
    for rows in _ROWS[1:]:
        if not is_markdown or len(render(report, Format.MARKDOWN)) <= LONGEST_MARKDOWN:
            break
        report = _report(comparisons, rows)
    return report


def _report(comparisons: Sequence[Comparison], most_rows: int) -> Report:
    damage = list(dict.fromkeys(line for comparison in comparisons for line in comparison.damage))
    if len(damage) > _MOST_DAMAGE:
        damage[_MOST_DAMAGE:] = [f"{len(damage) - _MOST_DAMAGE} more are in --format json."]
    if len(comparisons) == 1:
        return Report(
            describe_verdict(comparisons[0]),
            to_data(comparisons[0]),
            to_sections(comparisons[0], most_rows),
            tuple(damage),
        )
    data: dict[str, Json] = {"schema": _MANY_SCHEMA, "comparisons": [to_data(comparison) for comparison in comparisons]}
    return Report(
        f"{len(comparisons)} compared with {shorten(comparisons[0].a.name)}",
        data,
        summarize(comparisons, most_rows),
        tuple(damage),
    )
