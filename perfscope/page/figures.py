"""What several parts of a page draw: stacked bars with their values, and which rows are shown of very many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from perfscope.charts.grammar import Categories, Chart, RowSpan, RowSpans, Values
from perfscope.charts.palette import Colour
from perfscope.page.part import PageFigure
from perfscope.report import Column, Section


def draw_bars(
    title: str,
    unit: str,
    names: Sequence[str],
    rows: Sequence[Sequence[float | None]],
    kinds: Sequence[tuple[str, Colour]],
    *,
    axis: str = "",
) -> PageFigure:
    """A bar a row, made of its kinds from the left to the right, and a table of them with their sum.

    Args:
        title: What the figure shows.
        unit: Of the values, in tips and in headings.
        names: What each row is of.
        rows: A value for each kind, by row; None for an unknown one.
        kinds: What each part of a bar is, and its colour.
        axis: What the axis shows, where that is not the unit alone.
    """
    used = [kind for kind in range(len(kinds)) if any(row[kind] for row in rows)]
    edges = [[0.0, *accumulate(value or 0.0 for value in row)] for row in rows]
    marks = tuple(
        RowSpans(
            kinds[kind][0],
            kinds[kind][1],
            tuple(
                RowSpan(
                    index,
                    edges[index][kind],
                    edges[index][kind + 1],
                    f"{names[index]}: {kinds[kind][0]} {value:,.2f} {unit}",
                )
                for index, row in enumerate(rows)
                if (value := row[kind])
            ),
        )
        for kind in used
    )
    labels = ", ".join(kinds[kind][0] for kind in used)
    chart = Chart(
        title,
        f"{len(rows)} bars, in {unit}: {labels}.",
        Values(axis or unit, low=0),
        Categories("", tuple(names)),
        marks,
    )
    columns = (Column("Of"), *(Column(f"{label.capitalize()} ({unit})", 3) for label, _ in kinds))
    if len(kinds) == 1:
        return PageFigure(
            (chart,), Section(title, columns, tuple((name, *row) for name, row in zip(names, rows, strict=True)))
        )
    cells = tuple((name, *row, sums[-1]) for name, row, sums in zip(names, rows, edges, strict=True))
    return PageFigure((chart,), Section(title, (*columns, Column(f"All ({unit})", 3)), cells))


@dataclass(frozen=True, slots=True)
class ShownRows:
    """Rows of a chart.

    Attributes:
        rows: Positions of the shown ones, ascending.
        note: What is shown of how much; ``""`` where it is all.
    """

    rows: tuple[int, ...]
    note: str


def select_rows(values: Sequence[float], most: int, measure: str) -> ShownRows:
    """All rows, or the quarter of the shown ones with the largest values and even quantiles of the others.

    Args:
        values: One value a row.
        most: How many rows are shown at most.
        measure: What the values are, in words.
    """
    if len(values) <= most:
        return ShownRows(tuple(range(len(values))), "")
    order = sorted(range(len(values)), key=lambda row: (values[row], row))
    outliers, others = order[-(most // 4) :], order[: -(most // 4)]
    count = most - len(outliers)
    quantiles = [others[round(index * (len(others) - 1) / (count - 1))] for index in range(count)]
    note = (
        f"{most} of {len(values):,} are shown: the {len(outliers)} with the largest {measure}, and even quantiles of "
        "the others, from the smallest up."
    )
    return ShownRows(tuple(sorted({*outliers, *quantiles})), note)


def bucket_edges(count: int, most: int) -> list[tuple[int, int]]:
    """Ranges of positions, as equal as can be, at most so many.

    >>> bucket_edges(5, 2), bucket_edges(2, 4)
    ([(0, 2), (2, 5)], [(0, 1), (1, 2)])
    """
    buckets = min(count, most)
    return [(count * index // buckets, count * (index + 1) // buckets) for index in range(buckets)]
