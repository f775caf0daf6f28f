"""What a page is made of: parts with charts and tables, each with the reason where it has none, and stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeVar

from perfscope.charts.grammar import Categories, Chart, RowSpan, RowSpans, Values
from perfscope.charts.palette import Colour
from perfscope.engine.run import Analysis
from perfscope.report import Column, Section

#: Bars and rows that a chart shows of very many.
MOST_DRAWN = 64


@dataclass(frozen=True, slots=True)
class PageFigure:
    """Charts on a common axis, from the top to the bottom, and a table of what they show."""

    charts: tuple[Chart, ...]
    values: Section


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is drawn of results above their tables: a sentence, escaped HTML, the charts; or why there is none."""

    lead: str = ""
    figures: tuple[PageFigure, ...] = ()
    html: str = ""
    absent: str = ""


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part of a page: its name in links, its heading, what is drawn, and tables of the report with their notes."""

    identity: str
    title: str
    drawn: Drawn
    sections: tuple[Section, ...] = ()


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure at the top of a page, its value as in JSON, and where it is in that of `perfscope analyze`."""

    label: str
    text: str
    value: float
    pointer: str


@dataclass(frozen=True, slots=True)
class PageDocument:
    """A page: facts in a few words each, and sentences on what is damaged and what a reader must know.

    ``command`` is the whole command where the title is only its beginning.
    """

    title: str
    command: str
    facts: tuple[str, ...]
    damage: tuple[str, ...]
    remarks: tuple[str, ...]
    tiles: tuple[Tile, ...]
    parts: tuple[PagePart, ...]


_R = TypeVar("_R")


def result_of(analysis: Analysis, name: str, kind: type[_R]) -> _R | None:
    """A result, where there is one."""
    result = analysis.results.get(name)
    return result if isinstance(result, kind) else None


def rank_name(rank: int | None) -> str:
    """What charts call a rank."""
    return "rank unknown" if rank is None or rank < 0 else f"rank {rank}"


def draw_bars(
    title: str,
    unit: str,
    names: Sequence[str],
    rows: Sequence[Sequence[float | None]],
    kinds: Sequence[tuple[str, Colour]],
) -> PageFigure:
    """A bar a row, made of its kinds from the left to the right, and a table of them with their sum.

    A row has a value for each kind in the unit; None for an unknown one.
    """
    edges = [[0.0, *accumulate(value or 0.0 for value in row)] for row in rows]
    marks = tuple(
        RowSpans(
            label,
            colour,
            tuple(
                RowSpan(index, start, end, f"{name}: {label} {row[kind]:,.2f} {unit}")
                for index, (name, row, (start, end)) in enumerate(
                    zip(names, rows, (edge[kind : kind + 2] for edge in edges), strict=True)
                )
                if row[kind]
            ),
        )
        for kind, (label, colour) in enumerate(kinds)
        if any(row[kind] for row in rows)
    )
    description = f"{len(rows)} bars, in {unit}: {', '.join(mark.label for mark in marks)}."
    chart = Chart(title, description, Values(unit, low=0), Categories(tuple(names)), marks)
    columns = (*(Column(f"{label.capitalize()} ({unit})", 3) for label, _ in kinds), Column(f"All ({unit})", 3))
    cells = tuple((name, *row, sums[-1]) for name, row, sums in zip(names, rows, edges, strict=True))
    return PageFigure((chart,), Section(title, (Column("Of"), *columns), cells))


class ShownRows(NamedTuple):
    """The positions of the rows that a chart shows, ascending, and a note on how many they are of; empty for all."""

    rows: tuple[int, ...]
    note: str


def select_rows(values: Sequence[float], measure: str) -> ShownRows:
    """All rows, or the quarter of the shown ones with the largest values and even quantiles of the others.

    ``measure`` says in words what the values are, one a row.
    """
    if len(values) <= MOST_DRAWN:
        return ShownRows(tuple(range(len(values))), "")
    order = sorted(range(len(values)), key=lambda row: (values[row], row))
    outliers, others = order[-(MOST_DRAWN // 4) :], order[: -(MOST_DRAWN // 4)]
    count = MOST_DRAWN - len(outliers)
    quantiles = [others[round(index * (len(others) - 1) / (count - 1))] for index in range(count)]
    note = (
        f"{MOST_DRAWN} of {len(values):,} are shown: the {len(outliers)} with the largest {measure}, and even "
        "quantiles of the others, from the smallest up."
    )
    return ShownRows(tuple(sorted({*outliers, *quantiles})), note)


def draw_selected(
    title: str,
    unit: str,
    bars: Sequence[tuple[str, Sequence[float | None]]],
    kinds: Sequence[tuple[str, Colour]],
    measure: str,
    values: Sequence[float],
) -> tuple[PageFigure, str]:
    """The bars that ``select_rows`` chooses, by name and row, and its note."""
    rows, note = select_rows(values, measure)
    shown = [bars[row] for row in rows]
    return draw_bars(title, unit, [name for name, _ in shown], [row for _, row in shown], kinds), note


def bucket_edges(count: int, most: int) -> list[tuple[int, int]]:
    """Ranges of positions, as equal as can be, at most so many.

    >>> bucket_edges(5, 2), bucket_edges(2, 4)
    ([(0, 2), (2, 5)], [(0, 1), (1, 2)])
    """
    buckets = min(count, most)
    return [(count * index // buckets, count * (index + 1) // buckets) for index in range(buckets)]
