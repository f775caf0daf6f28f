"""Two runs compared in Python, and the report of any number of comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfscope.analyzers.compare.comparison import Comparison, parse_limit
from perfscope.analyzers.compare.comparison import compare_sides as compare_two
from perfscope.analyzers.compare.report import describe_verdict, shorten, summarize, to_data, to_sections
from perfscope.analyzers.compare.side import Side
from perfscope.measures.statistics import CONFIDENCE
from perfscope.renderers import Format, render
from perfscope.report import MOST_ROWS, Json, Report


class ComparedRuns:
    """B compared with A; it shows itself in a notebook, and ``str(compared)`` is markdown."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    @property
    def verdict(self) -> str:
        """``slower``, ``faster``, ``same``, ``not_sure`` or ``incomparable``."""
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
        return to_report([self])

    def __str__(self) -> str:
        return render(self.report(), Format.MARKDOWN)

    def __repr__(self) -> str:
        return f"<{describe_verdict(self.comparison)}>"

    _repr_markdown_ = __str__


def compare_sides(
    sides: Sequence[Side], *, anyway: bool = False, limits: Sequence[str] = (), between_runs: float | None = None
) -> tuple[ComparedRuns, ...]:
    """Compare each further side with the first one; all intervals hold together with the stated confidence.

    A limit that cannot be understood is a ``UsageError``.
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


def to_report(compared: Sequence[ComparedRuns]) -> Report:
    """Write comparisons as the neutral document."""
    comparisons = [runs.comparison for runs in compared]
    damage = tuple(dict.fromkeys(line for comparison in comparisons for line in comparison.damage))
    first, *others = comparisons
    if not others:
        return Report(describe_verdict(first), to_data(first), to_sections(first, MOST_ROWS), damage)
    data: dict[str, Json] = {"schema": "perfscope/comparisons/1", "comparisons": list(map(to_data, comparisons))}
    title = f"{len(comparisons)} compared with {shorten(first.a.name)}"
    return Report(title, data, summarize(comparisons, MOST_ROWS), damage)
