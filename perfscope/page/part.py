"""What a page is made of: parts with charts and tables, each with the reason where it has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from perfscope.charts.grammar import Chart
from perfscope.engine.run import Analysis
from perfscope.report import Section


@dataclass(frozen=True, slots=True)
class PageFigure:
    """Charts on a common axis, with the figures that they draw.

    Attributes:
        charts: From the top to the bottom; the first one's title is the figure's.
        values: A table of what they show.
    """

    charts: tuple[Chart, ...]
    values: Section | None = None


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part of a page.

    Attributes:
        identity: Its name in links.
        title: Its heading.
        lead: What it says, in a sentence or two.
        figures: Its charts.
        sections: Tables of the report, with their notes.
        absent: Why it has nothing to show; ``""`` where it has.
        html: What stands before its charts, written by us and escaped.
    """

    identity: str
    title: str
    lead: str = ""
    figures: tuple[PageFigure, ...] = ()
    sections: tuple[Section, ...] = ()
    absent: str = ""
    html: str = ""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is drawn of results, above their tables.

    Attributes:
        lead: What it says, in a sentence or two.
        figures: The charts.
        html: What stands before the charts, written by us and escaped.
        absent: Why there is nothing to show; ``""`` where there is.
    """

    lead: str = ""
    figures: tuple[PageFigure, ...] = ()
    html: str = ""
    absent: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure at the top of a page.

    Attributes:
        label: What it is.
        text: How it reads.
        value: The figure as JSON has it.
        pointer: Where it stands in the JSON of `perfscope analyze`.
    """

    label: str
    text: str
    value: float
    pointer: str


@dataclass(frozen=True, slots=True)
class PageDocument:
    """A page.

    Attributes:
        title: What it is of.
        facts: How that was trained, in a few words each.
        damage: What could not be read, as sentences.
        remarks: What a reader must know before all figures, as sentences.
        tiles: The figures at its top.
        parts: Its parts.
    """

    title: str
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
