"""Several comparisons with the same first side: a table of verdicts, and the budgets of those that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfscope.analyzers.comparison.comparison import Comparison, Verdict
from perfscope.analyzers.comparison.report import describe_verdict, shorten, to_sections
from perfscope.analyzers.comparison.side import Figure
from perfscope.constants import MS_PER_S
from perfscope.report import Column, Row, Section, first_rows, percent

_MOST_VERDICTS = 100
_MOST_DETAILED = 10
_LEAST_DETAILED = 3


def summarize(comparisons: Sequence[Comparison], most_rows: int) -> tuple[Section, ...]:
    """A row for each comparison, and where there is room the sections of each that found a difference."""
    sections = [_verdicts(comparisons)]
    if most_rows < _LEAST_DETAILED:
        return tuple(sections)
    detailed = [comparison for comparison in comparisons if comparison.verdict is not Verdict.SAME][:_MOST_DETAILED]
    for comparison in detailed:
        name = shorten(comparison.b.name)
        sections += [
            replace(section, title=f"{name}: {section.title}") for section in to_sections(comparison, most_rows)
        ]
    return tuple(sections)


def _verdicts(comparisons: Sequence[Comparison]) -> Section:
    rows: list[Row] = []
    for comparison in comparisons:
        step = comparison.changes.get(Figure.STEP_TIME)
        interval = step.interval if step else None
        rows.append(
            (
                shorten(comparison.b.name),
                str(comparison.verdict),
                None if step is None else step.b * MS_PER_S,
                None if step is None else percent(step.change),
                None if interval is None else f"{interval[0] * 100:+.2f} to {interval[1] * 100:+.2f}",
                sum(1 for verdict in comparison.limits if verdict.is_exceeded),
            )
        )
    columns = (
        Column("B"),
        Column("Verdict"),
        Column("Step time (ms)", 3),
        Column("Change (%)", 2),
        Column("Interval (%)"),
        Column("Limits exceeded"),
    )
    shown, left_out = first_rows(rows, _MOST_VERDICTS)
    confidence = comparisons[0].confidence
    note = (
        f"Each interval has a confidence of {confidence:.2%}, so that all {len(comparisons)} hold together with 95 % "
        "(Bonferroni)."
    )
    unclear = tuple(
        f"{describe_verdict(comparison)}."
        for comparison in comparisons[:_MOST_DETAILED]
        if comparison.verdict is Verdict.INCOMPARABLE
    )
    return Section("Verdicts", columns, shown, (note, *unclear, *left_out))
