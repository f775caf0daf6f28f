"""The budget of a difference: what the change of a step is made of, term by term."""

from __future__ import annotations

from perfscope.analyzers.compare.comparison import BudgetChange, Comparison
from perfscope.analyzers.compare.report import shorten, to_sections
from perfscope.charts.grammar import Categories, Chart, Span, Spans, Values
from perfscope.charts.palette import Colour
from perfscope.constants import NS_PER_MS
from perfscope.page.part import Figure, Part
from perfscope.report import Cell, Column, Section
from perfscope.tables.kernel_classes import short_name

_IDENTITY, _TITLE = "difference", "Budget of the difference"
_MOST_TERMS = 24
_MOST_ROWS = 25


def show_difference(comparison: Comparison) -> Part:
    """Each term of the change from where the one before it ended, so that the last one ends at the whole change."""
    sections = to_sections(comparison, _MOST_ROWS)
    budget = comparison.budget
    if budget is None:
        reasons = list(dict.fromkeys((*comparison.a.reasons.values(), *comparison.b.reasons.values())))
        reason = "; ".join(reasons) or "both sides need traces of profiled steps"
        return Part(_IDENTITY, _TITLE, f"The change cannot be split: {reason}.", sections=sections)
    steps = _list_changes(budget)
    chart = _chart(budget, steps)
    columns = (Column("Term"), Column("Change (ms)", 3), Column("From (ms)", 3), Column("To (ms)", 3))
    rows: list[tuple[Cell, ...]] = []
    edge_ns = 0
    for name, change_ns in steps:
        rows.append((name, change_ns / NS_PER_MS, edge_ns / NS_PER_MS, (edge_ns + change_ns) / NS_PER_MS))
        edge_ns += change_ns
    lead = (
        f"What changed a step by {budget.change_ns / NS_PER_MS:+,.3f} ms from {shorten(comparison.a.name)} to "
        f"{shorten(comparison.b.name)}. Each bar begins where the one above it ends; they add up exactly."
    )
    return Part(_IDENTITY, _TITLE, lead, (Figure((chart,), Section(chart.title, columns, tuple(rows))),), sections)


def _list_changes(budget: BudgetChange) -> list[tuple[str, int]]:
    """The largest changes, the rest as one, and what is not explained."""
    terms = [term for term in budget.terms if term.change_ns]
    terms.sort(key=lambda term: -abs(term.change_ns))
    changes = [(_name(term.term.kind, term.term.name), term.change_ns) for term in terms[:_MOST_TERMS]]
    rest_ns = sum(term.change_ns for term in terms[_MOST_TERMS:])
    if terms[_MOST_TERMS:]:
        changes.append((f"{len(terms) - _MOST_TERMS} smaller terms", rest_ns))
    if budget.unexplained_ns:
        changes.append(("not explained", budget.unexplained_ns))
    assert sum(change for _, change in changes) == budget.change_ns, "the terms add up to the change"
    return changes


def _name(kind: str, name: str) -> str:
    return f"{kind}: {short_name(name)}" if name else kind


def _chart(budget: BudgetChange, changes: list[tuple[str, int]]) -> Chart:
    slower: list[Span] = []
    faster: list[Span] = []
    edge_ns = 0
    for row, (name, change_ns) in enumerate(changes):
        start, end = edge_ns / NS_PER_MS, (edge_ns + change_ns) / NS_PER_MS
        span = Span(row, start, end, f"{name}: {change_ns / NS_PER_MS:+,.3f} ms")
        (slower if change_ns > 0 else faster).append(span)
        edge_ns += change_ns
    total = Span(len(changes), 0, edge_ns / NS_PER_MS, f"altogether: {edge_ns / NS_PER_MS:+,.3f} ms")
    return Chart(
        "What the change is made of",
        f"{len(changes)} terms whose sum is the change of a step, {budget.change_ns / NS_PER_MS:+.3f} ms.",
        Values("ms of a step"),
        Categories("", (*(name for name, _ in changes), "altogether")),
        (
            Spans("slower", Colour.WORSE, tuple(slower)),
            Spans("faster", Colour.BETTER, tuple(faster)),
            Spans("altogether", Colour.QUIET, (total,)),
        ),
        row_height=20,
    )
