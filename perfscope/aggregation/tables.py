"""A table of very many ranks as quantiles, groups, and the rows that stand out.

Nothing is cut silently: a note says of how many rows a table is, how those that are shown were chosen, and where all
rows are. Rows that are shown are shown as they are, totals too: no number is computed anew.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from msgspec import Struct

from perfscope.aggregation.spread import (
    FAR,
    QUANTILES,
    CellColumn,
    Chosen,
    Floats,
    Integers,
    choose_rows,
    deviations,
    nearest_rank,
)
from perfscope.constants import MANY_RANKS
from perfscope.packed import Pieces
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
#: The columns of so many rows are in memory at the same time, where texts tell more apart.
_AT_ONCE = 32768
#: Stands for the rank of a row that names none; no group has it.
_NO_RANK = -1
#: Stands for a row where there is none.
_NONE = -1


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
    ranks = _count_ranks(every, rank_column)
    if ranks <= MANY_RANKS:
        return section
    split = _Split(every, rank_column)
    rows: list[Row] = []
    shown_of: dict[str, tuple[int, int]] = {}
    chosen: list[Chosen] = []
    for part in split.parts():
        rows += part.quantiles()
        # Where texts tell rows apart, such as the step, groups would make as many tables as there are texts.
        for grouping in groupings if len(split.sizes) == 1 else ():
            groups, count = part.groups(grouping)
            shown_of[grouping.name] = len(groups), count
            rows += groups
        rows += part.exact()
        chosen.append(part.chosen)
    rows += [row for row in every if _is_total(row, rank_column)]
    notes = section.notes[:-1] if section.every else section.notes
    description = _describe(sum(split.sizes.values()), ranks, chosen, shown_of)
    return replace(section, rows=tuple(rows), notes=(*notes, description), every=every, is_aggregated=True)


def _count_ranks(rows: Iterable[Row], rank_column: int) -> int:
    named = (rank_of(row[rank_column]) for row in rows)
    ranks = np.sort(np.frombuffer(array("q", (rank for rank in named if rank is not None)), np.int64))
    return int(np.count_nonzero(ranks[1:] != ranks[:-1])) + min(len(ranks), 1)


class _Part:
    """Rows that are compared with each other, by their columns: as objects all rows would fill the memory."""

    def __init__(self, every: Sequence[Row], rank_column: int) -> None:
        self._every, self._rank_column = every, rank_column
        self._places, self._ranks = array("q"), array("q")
        pieces = Pieces()
        self._columns = [CellColumn[Cell](pieces=pieces) for _ in every[0]]

    def __len__(self) -> int:
        return len(self._places)

    def append(self, place: int, row: Row) -> None:
        """Add a row, which stands at that place among all."""
        rank = rank_of(row[self._rank_column])
        self._places.append(place)
        self._ranks.append(_NO_RANK if rank is None else rank)
        for column, cell in zip(self._columns, row, strict=True):
            column.append(cell)

    def _values(self) -> Iterator[tuple[int, Floats]]:
        """The columns of numbers, one after the other."""
        for index, column in enumerate(self._columns):
            values = None if index == self._rank_column else column.values
            if values is not None:
                yield index, values

    @cached_property
    def chosen(self) -> Chosen:
        """The rows that stand out."""
        return choose_rows(values for _, values in self._values())

    def exact(self) -> list[Row]:
        """The rows that stand out, as they are."""
        return [self._every[self._places[row]] for row in self.chosen.rows]

    def quantiles(self) -> list[Row]:
        """A row for each quantile, of each column by itself."""
        picks = [dict[int, int | None]() for _ in QUANTILES]
        for index, values in self._values():
            order, present = np.argsort(values, kind="stable"), int((~np.isnan(values)).sum())
            for (_, share), pick in zip(QUANTILES, picks, strict=True):
                pick[index] = int(order[nearest_rank(present, share)]) if present else None
        return [self._row(name, pick) for (name, _), pick in zip(QUANTILES, picks, strict=True)]

    def groups(self, grouping: Grouping) -> tuple[list[Row], int]:
        """A row of medians for each group, or for those that are farthest from the others; and how many groups are."""
        labels, members = self._members(grouping)
        picks: dict[int, Integers] = {}
        score = np.zeros(len(labels))
        for index, values in self._values():
            picks[index] = np.array([_pick_median(values, of_group) for of_group in members], np.int64)
            medians = np.where(picks[index] == _NONE, np.nan, values[picks[index]])
            if len(labels) > _MOST_GROUPS and not np.isnan(medians).all():
                score = np.maximum(score, np.nan_to_num(deviations(medians)))
        shown = range(len(labels))
        if len(labels) > _MOST_GROUPS:
            shown = np.argsort(-score, kind="stable")[:_FARTHEST_GROUPS].tolist()
        rows = [
            self._row(
                f"{grouping.name} {labels[group]}: median of {len(members[group])}",
                {index: None if rows[group] == _NONE else int(rows[group]) for index, rows in picks.items()},
            )
            for group in shown
        ]
        return rows, len(labels)

    def _members(self, grouping: Grouping) -> tuple[list[str], Sequence[Integers]]:
        """The groups in the order of their labels, and the rows of each."""
        number_of: dict[str, int] = {}
        numbers = array("i")
        for rank in self._ranks:
            label = grouping.label_of.get(rank)
            numbers.append(_NONE if label is None else number_of.setdefault(label, len(number_of)))
        of_row = np.frombuffer(numbers, np.int32)
        order = np.argsort(of_row, kind="stable")
        ends = of_row[order].searchsorted(np.arange(len(number_of) + 1, dtype=np.int32))
        labels = sorted(number_of)
        slices = ((ends[number_of[label]], ends[number_of[label] + 1]) for label in labels)
        return labels, [order[begin:end] for begin, end in slices]

    def _row(self, label: str, picks: Mapping[int, int | None]) -> Row:
        """A row with the cells of some rows in the columns of numbers."""
        cells = [column.shared for column in self._columns]
        cells[self._rank_column] = label
        for index, row in picks.items():
            cells[index] = None if row is None else self._cell(row, index)
        return tuple(cells)

    def _cell(self, row: int, index: int) -> Cell:
        number = self._columns[index].number_at(row)
        return self._every[self._places[row]][index] if number is None else number


def _pick_median(values: Floats, rows: Integers) -> int:
    """The row among some whose value is their median; _NONE where none has a value."""
    of_rows = values[rows]
    present = int((~np.isnan(of_rows)).sum())
    return int(rows[np.argsort(of_rows, kind="stable")[nearest_rank(present, _MEDIAN)]]) if present else _NONE


class _Split:
    """Rows by the texts that tell them apart, such as the step; all together where there are too many texts.

    Attributes:
        sizes: How many rows have the same texts, in the order of the first of them.
    """

    def __init__(self, every: Sequence[Row], rank_column: int) -> None:
        self._every, self._rank_column = every, rank_column
        texts: dict[int, set[str]] = {index: set() for index in range(len(every[0])) if index != rank_column}
        for row in self._rows():
            for index, seen in list(texts.items()):
                cell = row[index]
                if isinstance(cell, str):
                    seen.add(cell)
                if not isinstance(cell, str) or len(seen) > _MOST_PARTS:
                    del texts[index]
        self._telling = tuple(texts)
        self.sizes = Counter(map(self._key, self._rows()))
        if len(self.sizes) > _MOST_PARTS:
            self._telling = ()
            self.sizes = Counter({(): self.sizes.total()})

    def parts(self) -> Iterator[_Part]:
        """The parts one after the other; all rows are read again for each few, whose columns are in memory."""
        waiting = deque(self.sizes)
        while waiting:
            parts = {key: _Part(self._every, self._rank_column) for key in self._next_few(waiting)}
            for position, row in enumerate(self._every):
                part = parts.get(self._key(row))
                if part is not None and not _is_total(row, self._rank_column):
                    part.append(position, row)
            while parts:
                yield parts.pop(next(iter(parts)))

    def _next_few(self, waiting: deque[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
        few = [waiting.popleft()]
        while waiting and sum(self.sizes[key] for key in (*few, waiting[0])) <= _AT_ONCE:
            few.append(waiting.popleft())
        return few

    def _rows(self) -> Iterator[Row]:
        return (row for row in self._every if not _is_total(row, self._rank_column))

    def _key(self, row: Row) -> tuple[Cell, ...]:
        return tuple(row[index] for index in self._telling)


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
