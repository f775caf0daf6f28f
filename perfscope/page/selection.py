"""Which ranks a chart shows where a job has more than can be seen: those that stand out, and evenly chosen others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_MOST_HIGH_ROWS = 16


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows of a chart.

    Attributes:
        rows: Positions of the shown ones, ascending.
        note: What is shown of how much; ``""`` where it is all.
    """

    rows: tuple[int, ...]
    note: str


def select_rows(values: Sequence[float], most: int, measure: str) -> Selection:
    """All rows, or the quarter of the shown ones with the largest values and even quantiles of the others.

    Args:
        values: One value a row.
        most: How many rows are shown at most.
        measure: What the values are, in words.
    """
    if len(values) <= most:
        return Selection(tuple(range(len(values))), "")
    order = sorted(range(len(values)), key=lambda row: (values[row], row))
    outliers = order[-(most // 4) :]
    others = order[: -(most // 4)]
    count = most - len(outliers)
    quantiles = [others[round(index * (len(others) - 1) / (count - 1))] for index in range(count)]
    note = (
        f"{most} of {len(values):,} are shown: the {len(outliers)} with the largest {measure}, and even quantiles of "
        "the others, from the smallest up."
    )
    return Selection(tuple(sorted({*outliers, *quantiles})), note)


def fit_row_height(rows: int) -> int:
    """How high a row of a chart is, in pixels: lower where there are more."""
    return 22 if rows <= _MOST_HIGH_ROWS else 14


def bucket_edges(count: int, most: int) -> list[tuple[int, int]]:
    """Ranges of positions, as equal as can be, at most so many.

    >>> bucket_edges(5, 2), bucket_edges(2, 4)
    ([(0, 2), (2, 5)], [(0, 1), (1, 2)])
    """
    buckets = min(count, most)
    return [(count * index // buckets, count * (index + 1) // buckets) for index in range(buckets)]
