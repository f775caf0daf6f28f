"""A table of very many ranks as quantiles, groups, and the rows that stand out; all rows in files of CSV.

Nothing is cut silently: a note says of how many rows a table is, how those that are shown were chosen, and where all
rows are. Rows that are shown are shown as they are, totals too: no number is computed anew.

A quantile is a value that is there: the smallest one that is at least as large as that share of the values (the nearest
rank). A row stands out where one of its values is farther from the median than a normal distribution explains.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, nan
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.constants import MANY_RANKS
from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.report import NEGLIGIBLE, Cell, Report, Row, Section

#: What a note says of where all rows are, until they are written.
ALL_ROWS = "All rows: `perfscope analyze ... --rows FOLDER` writes them."

_HEADINGS = ("Rank", "Rank and step")
_RANK = re.compile(r"(?:rank )?(\d+)\b")
_TOTAL = "all"
#: What is told of many values.
QUANTILES = (
    ("smallest", 0.0), ("1 %", 0.01), ("10 %", 0.1), ("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("largest", 1.0),
)  # fmt: skip
_MEDIAN = dict(QUANTILES)["median"]
#: An outlier is that many standard deviations from the median, and at least a hundredth of the median.
FAR = 8
#: How many outliers are shown, and how many groups: the farthest from the median.
MOST_SHOWN = 16
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
    totals = [row for row in every if _TOTAL in row[: rank_column + 1]]  # the rank, or the host before it
    table = _Ranks([row for row in every if _TOTAL not in row[: rank_column + 1]], rank_column)
    groups, told = [], []
    for grouping in groupings:
        rows, count = table.groups(grouping)
        groups += rows
        if count:
            most = "all" if len(rows) == count else f"the {len(rows)} farthest of"
            told.append(f"{grouping.name}: medians of {most} {count:,}")
    chosen, description = table.chosen()
    by_group = f"; {', '.join(told)}" if told else ""
    note = (
        f"{len(table.rows):,} rows of {ranks:,} ranks, told by quantiles of each column by itself{by_group}; and as "
        f"they are, the rows with the smallest and the largest value of each column{description}. {ALL_ROWS}"
    )
    notes = section.notes[:-1] if section.every else section.notes
    shown = (*table.quantiles(), *groups, *chosen, *totals)
    return replace(section, rows=shown, notes=(*notes, note), every=every, is_aggregated=True)


class _Ranks:
    """The rows of a table that name ranks, and the numbers of its columns: NaN where there is none."""

    def __init__(self, rows: Sequence[Row], rank_column: int) -> None:
        self.rows, self._rank_column = rows, rank_column
        columns = list(zip(*rows, strict=True))
        self._values = {
            index: np.array([cell if isinstance(cell, int | float) else nan for cell in column], np.float64)
            for index, column in enumerate(columns)
            if index != rank_column and not any(isinstance(cell, str) for cell in column)
        }
        self._shared = [column[0] if all(cell == column[0] for cell in column) else "" for column in columns]

    def quantiles(self) -> list[Row]:
        """A row for each quantile, of each column by itself."""
        everywhere = range(len(self.rows))
        return [
            self._row(name, {index: _pick(values, everywhere, share) for index, values in self._values.items()})
            for name, share in QUANTILES
        ]

    def groups(self, grouping: Grouping) -> tuple[list[Row], int]:
        """A row of medians for each group, or for those that are farthest from the others; and how many groups are."""
        members: dict[str, list[int]] = {}
        for place, row in enumerate(self.rows):
            rank = rank_of(row[self._rank_column])
            if rank is not None and rank in grouping.label_of:
                members.setdefault(grouping.label_of[rank], []).append(place)
        picks = {
            label: {index: _pick(values, members[label], _MEDIAN) for index, values in self._values.items()}
            for label in sorted(members)
        }
        score = dict.fromkeys(picks, 0.0)
        for index, values in self._values.items():
            medians = np.array([nan if (picked := of[index]) is None else values[picked] for of in picks.values()])
            if len(picks) > MOST_SHOWN and not np.isnan(medians).all():
                far = zip(picks, np.nan_to_num(deviations(medians)).tolist(), strict=True)
                score |= {label: max(score[label], distance) for label, distance in far}
        shown = sorted(picks, key=lambda label: -score[label])[:MOST_SHOWN]
        return [self._row(f"{grouping.name} {of}: median of {len(members[of])}", picks[of]) for of in shown], len(picks)

    def chosen(self) -> tuple[list[Row], str]:
        """The extremes of each column and the outliers, the farthest first, and how many outliers these are."""
        extremes: set[int] = set()
        score = np.zeros(len(self.rows))
        for values in self._values.values():
            present = values[~np.isnan(values)]
            if len(present) and present.min() != present.max():
                extremes |= {int(np.nanargmin(values)), int(np.nanargmax(values))}
                score = np.maximum(score, np.nan_to_num(deviations(values)))
        outliers = np.flatnonzero(score > FAR)
        farthest = outliers[np.argsort(-score[outliers], kind="stable")][:MOST_SHOWN].tolist()
        rows = sorted({*extremes, *farthest}, key=lambda row: (-score[row], row))
        shown = int((score[rows] > FAR).sum()) if rows else 0
        far = f"more than {FAR} standard deviations (by the median deviation) and 1 % from the median"
        most = f"all {shown:,}" if shown == len(outliers) else f"{shown:,} of {len(outliers):,}"
        description = f" and {most} that are {far}" if len(outliers) else f"; none is {far}"
        return [self.rows[row] for row in rows], description

    def _row(self, label: str, picks: Mapping[int, int | None]) -> Row:
        """A row with the cells of some rows in the columns of numbers."""
        cells: list[Cell] = list(self._shared)
        cells[self._rank_column] = label
        for index, row in picks.items():
            cells[index] = None if row is None else self.rows[row][index]
        return tuple(cells)


def _pick(values: Floats, rows: Sequence[int], share: float) -> int | None:
    """The row among some whose value is a quantile of theirs; None where none has a value."""
    of_rows = values[rows]
    present = int((~np.isnan(of_rows)).sum())
    return rows[np.argsort(of_rows, kind="stable")[max(ceil(share * present) - 1, 0)]] if present else None


def deviations(values: Floats) -> Floats:
    """How many standard deviations each value is from the median, by the median deviation; NaN where there is none."""
    median = np.nanmedian(values)
    distance = np.abs(values - median)
    spread = _OVER_MEDIAN * np.nanmedian(distance) or _OVER_MEAN * np.nanmean(distance)
    least = NEGLIGIBLE * abs(median) / FAR
    scale = max(float(spread), float(least))
    with np.errstate(over="ignore"):  # of numbers that are next to nothing
        return np.asarray(distance / scale if scale else np.zeros(len(values)), np.float64)


def write_rows(report: Report, folder: Path) -> Report:
    """Write all rows of a report's tables of ranks into a folder, and say in the report where they are.

    A file of an earlier analysis is replaced. Raises SourceError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(folder, f"cannot be made: {error.strerror}") from None
    return replace(report, sections=tuple(_write_section(section, folder) for section in report.sections))


def _write_section(section: Section, folder: Path) -> Section:
    """Write a table, if it is one of ranks; its note names the file."""
    if find_rank_column(section) is None:
        return section
    name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")
    headings = [column.heading for column in section.columns]
    path = folder / f"{name}.csv"
    replace_file(path, _to_csv(headings, section.every or section.rows))
    return replace(section, notes=tuple(note.replace(ALL_ROWS, f"All rows: {path}.") for note in section.notes))


def _to_csv(columns: Sequence[str], rows: Sequence[Row]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode("utf-8", "surrogateescape")
