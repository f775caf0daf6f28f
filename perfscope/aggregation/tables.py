"""A table of very many ranks as quantiles, groups, and the rows that stand out.

Nothing is cut silently: a note says of how many rows a table is, how those that are shown were chosen, and where all
rows are. Rows that are shown are shown as they are, totals too: no number is computed anew.

A quantile is a value that is there: the smallest one that is at least as large as that share of the values (the nearest
rank). A row stands out where one of its values is farther from the median than a normal distribution explains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil, nan
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.constants import MANY_RANKS
from perfscope.report import Cell, Row, Section

#: What a note says of where all rows are, until they are written.
ALL_ROWS = "All rows: `perfscope analyze ... --rows FOLDER` writes them."

_HEADINGS = ("Rank", "Rank and step")
_RANK = re.compile(r"(?:rank )?(\d+)\b")
_TOTAL = "all"
#: A table is told apart by texts that take at most so many values together, such as the numbers of steps.
_MOST_PARTS = 12
#: So many groups are all shown; of more, those that are farthest from the median.
_MOST_GROUPS, _FARTHEST_GROUPS = 16, 4
_MEDIAN = 0.5
#: What is told of many values.
QUANTILES = (
    ("smallest", 0.0), ("1 %", 0.01), ("10 %", 0.1), ("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("largest", 1.0),
)  # fmt: skip
#: An outlier is that many standard deviations from the median, and at least that share of the median.
FAR = 8
_LEAST_SHARE = 0.01
#: How many outliers are shown.
MOST_OUTLIERS = 16
#: The standard deviation of a normal distribution over its median deviation, and over its mean one.
_OVER_MEDIAN, _OVER_MEAN = 1.4826, 1.2533

Floats: TypeAlias = npt.NDArray[np.float64]


class Grouping(Struct, frozen=True):
    """Which ranks belong together.

    Attributes:
        name: What a group is, such as ``host``.
        label_of: The group of each rank.
    """

    name: str
    label_of: Mapping[int, str]


def rank_of(cell: Cell) -> int | None:
    """The rank that a cell of a table names.

    >>> rank_of("12 (damaged)"), rank_of("rank 3 · step 5"), rank_of(7), rank_of("all"), rank_of("unknown")
    (12, 3, 7, None, None)
    """
    if isinstance(cell, int):
        return cell
    match = _RANK.match(cell) if isinstance(cell, str) else None
    return int(match[1]) if match else None


def find_rank_column(section: Section) -> int | None:
    """Where a table names ranks; None where it does not."""
    return next((index for index, column in enumerate(section.columns) if column.heading in _HEADINGS), None)


def aggregate(section: Section, groupings: Sequence[Grouping] = ()) -> Section:
    """A table of more than 512 ranks as quantiles, groups and outliers; any other table as it is."""
    rank_column = find_rank_column(section)
    every = section.every or section.rows
    if rank_column is None or section.is_aggregated or len(every) <= MANY_RANKS:
        return section
    ranks = len({rank_of(row[rank_column]) for row in every} - {None})
    if ranks <= MANY_RANKS:
        return section
    parts = _split([row for row in every if not _is_total(row, rank_column)], rank_column)
    rows: list[Row] = []
    shown_of: dict[str, tuple[int, int]] = {}
    for part in parts:
        rows += part.quantiles()
        # Where texts tell rows apart, such as the step, groups would make as many tables as there are texts.
        for grouping in groupings if len(parts) == 1 else ():
            groups, count = part.groups(grouping)
            shown_of[grouping.name] = len(groups), count
            rows += groups
        rows += [part.rows[place] for place in part.chosen.rows]
    rows += [row for row in every if _is_total(row, rank_column)]
    notes = section.notes[:-1] if section.every else section.notes
    description = _describe(sum(len(part.rows) for part in parts), ranks, [part.chosen for part in parts], shown_of)
    return replace(section, rows=tuple(rows), notes=(*notes, description), every=every, is_aggregated=True)


class _Part:
    """Rows that are compared with each other."""

    def __init__(self, rows: Sequence[Row], rank_column: int) -> None:
        self.rows, self._rank_column = rows, rank_column
        columns = list(zip(*rows, strict=True))
        values = {index: to_numbers(column) for index, column in enumerate(columns) if index != rank_column}
        self._values = {index: numbers for index, numbers in values.items() if numbers is not None}
        self._shared = [column[0] if all(cell == column[0] for cell in column) else "" for column in columns]
        self.chosen = choose_rows(self._values.values())

    def quantiles(self) -> list[Row]:
        """A row for each quantile, of each column by itself."""
        places = {index: places_of_quantiles(values) for index, values in self._values.items()}
        return [
            self._row(name, {index: of_column[number] for index, of_column in places.items()})
            for number, (name, _) in enumerate(QUANTILES)
        ]

    def groups(self, grouping: Grouping) -> tuple[list[Row], int]:
        """A row of medians for each group, or for those that are farthest from the others; and how many groups are."""
        members: dict[str, list[int]] = {}
        for place, row in enumerate(self.rows):
            rank = rank_of(row[self._rank_column])
            label = None if rank is None else grouping.label_of.get(rank)
            if label is not None:
                members.setdefault(label, []).append(place)
        labels = sorted(members)
        picks = {
            index: [_pick_median(values, members[label]) for label in labels] for index, values in self._values.items()
        }
        shown: Sequence[int] = range(len(labels))
        if len(labels) > _MOST_GROUPS:
            score = np.zeros(len(labels))
            for index, values in self._values.items():
                medians = np.array([nan if row is None else values[row] for row in picks[index]])
                if not np.isnan(medians).all():
                    score = np.maximum(score, np.nan_to_num(deviations(medians)))
            shown = np.argsort(-score, kind="stable")[:_FARTHEST_GROUPS].tolist()
        rows = [
            self._row(
                f"{grouping.name} {labels[group]}: median of {len(members[labels[group]])}",
                {index: rows[group] for index, rows in picks.items()},
            )
            for group in shown
        ]
        return rows, len(labels)

    def _row(self, label: str, picks: Mapping[int, int | None]) -> Row:
        """A row with the cells of some rows in the columns of numbers."""
        cells: list[Cell] = list(self._shared)
        cells[self._rank_column] = label
        for index, row in picks.items():
            cells[index] = None if row is None else self.rows[row][index]
        return tuple(cells)


def _pick_median(values: Floats, rows: Sequence[int]) -> int | None:
    """The row among some whose value is their median; None where none has a value."""
    of_rows = values[rows]
    present = int((~np.isnan(of_rows)).sum())
    return rows[np.argsort(of_rows, kind="stable")[nearest_rank(present, _MEDIAN)]] if present else None


def _split(rows: Sequence[Row], rank_column: int) -> list[_Part]:
    """Rows by the texts that tell them apart, such as the step; all together where there are too many texts."""
    columns = [column for index, column in enumerate(zip(*rows, strict=True)) if index != rank_column]
    telling = [
        column for column in columns if len(set(column)) <= _MOST_PARTS and all(isinstance(c, str) for c in column)
    ]
    parts: dict[tuple[Cell, ...], list[Row]] = {}
    for row, *key in zip(rows, *telling, strict=True):
        parts.setdefault(tuple(key), []).append(row)
    if len(parts) > _MOST_PARTS:
        return [_Part(rows, rank_column)]
    return [_Part(part, rank_column) for part in parts.values()]


def _is_total(row: Row, rank_column: int) -> bool:
    """Whether a row is over all ranks; it says so where other rows name the rank, or the host before it."""
    return _TOTAL in row[: rank_column + 1]


def _describe(rows: int, ranks: int, chosen: Sequence[Chosen], groups: Mapping[str, tuple[int, int]]) -> str:
    """Of how many rows a table is, and how those that are shown were chosen."""
    outliers, shown = sum(part.outliers for part in chosen), sum(part.shown_outliers for part in chosen)
    apart = ", for each text that tells rows apart" if len(chosen) > 1 else ""
    by_group = [
        f"{name}: medians of {'all' if most == total else f'the {most} farthest of'} {total:,}"
        for name, (most, total) in groups.items()
        if total
    ]
    most = f"all {outliers:,}" if outliers == shown else f"{shown:,} of {outliers:,}"
    far = f"more than {FAR} standard deviations (by the median deviation) and 1 % from the median"
    stand_out = f" and {most} that are {far}" if outliers else f"; none is {far}"
    return (
        f"{rows:,} rows of {ranks:,} ranks, told by quantiles of each column by itself{apart}"
        f"{'; ' + ', '.join(by_group) if by_group else ''}; and as they are, the rows with the smallest and the "
        f"largest value of each column{stand_out}. {ALL_ROWS}"
    )


def to_numbers(cells: Sequence[object]) -> Floats | None:
    """The numbers of a column, NaN where there is none; None where a cell is a text, or none is a number."""
    if any(isinstance(cell, str) for cell in cells) or all(cell is None for cell in cells):
        return None
    return np.array([cell if isinstance(cell, int | float) else nan for cell in cells], np.float64)


def places_of_quantiles(values: Floats) -> list[int | None]:
    """Where the value of each of ``QUANTILES`` stands; None where there is no value."""
    order, present = np.argsort(values, kind="stable"), int((~np.isnan(values)).sum())
    return [int(order[nearest_rank(present, share)]) if present else None for _, share in QUANTILES]


class Chosen(Struct, frozen=True):
    """The rows that are shown as they are.

    Attributes:
        rows: Their positions, the one that stands out most first.
        outliers: How many rows are outliers.
        shown_outliers: How many of these are shown.
    """

    rows: tuple[int, ...]
    outliers: int
    shown_outliers: int


def nearest_rank(count: int, share: float) -> int:
    """The position of a quantile among so many values in order.

    >>> [nearest_rank(4, share) for share in (0, 0.25, 0.5, 0.51, 1)]
    [0, 0, 1, 2, 3]
    """
    return max(ceil(share * count) - 1, 0)


def choose_rows(columns: Iterable[Floats]) -> Chosen:
    """The rows with the smallest and the largest value of each column, and those that are farthest from the medians.

    Args:
        columns: The values of each column, NaN where there is none; a column of equal values tells nothing.
    """
    extremes: set[int] = set()
    score = np.zeros(0)
    for values in columns:
        score = score if len(score) else np.zeros(len(values))
        present = values[~np.isnan(values)]
        if not len(present) or present.min() == present.max():
            continue
        extremes |= {int(np.nanargmin(values)), int(np.nanargmax(values))}
        score = np.maximum(score, np.nan_to_num(deviations(values)))
    outliers = np.flatnonzero(score > FAR)
    farthest = outliers[np.argsort(-score[outliers], kind="stable")][:MOST_OUTLIERS].tolist()
    rows = sorted({*extremes, *farthest}, key=lambda row: (-score[row], row))
    shown = int((score[rows] > FAR).sum()) if rows else 0
    return Chosen(tuple(rows), len(outliers), shown)


def deviations(values: Floats) -> Floats:
    """How many standard deviations each value is from the median, by the median deviation; NaN where there is none."""
    median = np.nanmedian(values)
    distance = np.abs(values - median)
    spread = _OVER_MEDIAN * np.nanmedian(distance) or _OVER_MEAN * np.nanmean(distance)
    least = _LEAST_SHARE * abs(median) / FAR
    scale = max(float(spread), float(least))
    with np.errstate(over="ignore"):  # of numbers that are next to nothing
        return np.asarray(distance / scale if scale else np.zeros(len(values)), np.float64)
