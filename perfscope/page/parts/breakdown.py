"""Device time per rank and step: compute, exposed communication, exposed copies and idle time, which add up."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.breakdown import Breakdown
from perfscope.analyzers.host import HostTime
from perfscope.analyzers.idle import Idle
from perfscope.analyzers.shared.parts import Parts
from perfscope.charts.grammar import Categories, Chart, Span, Spans, Values
from perfscope.charts.palette import Colour
from perfscope.charts.svg import stack_spans
from perfscope.constants import NS_PER_MS
from perfscope.engine.run import Analysis
from perfscope.page.part import Figure, Part, rank_name, result_of, why_absent
from perfscope.page.selection import fit_row_height, select_rows
from perfscope.report import Cell, Column, Section, percent_of

_IDENTITY, _TITLE = "breakdown", "Device time"
_MOST_ROWS = 48
_KINDS = (
    ("compute", Colour.COMPUTE),
    ("exposed communication", Colour.COMMUNICATION),
    ("exposed copies", Colour.COPY),
    ("idle", Colour.IDLE),
)


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    parts: Parts

    @property
    def times_ms(self) -> tuple[float, ...]:
        """In the order of the kinds."""
        parts = self.parts
        times = (parts.compute, parts.exposed_communication, parts.exposed_copy, parts.idle)
        return tuple(time / NS_PER_MS for time in times)


def show_breakdown(analysis: Analysis) -> Part:
    """A stacked bar for each rank and step."""
    breakdown = result_of(analysis, "breakdown", Breakdown)
    if breakdown is None:
        host = result_of(analysis, "host", HostTime)
        if host is not None:
            lead = "No GPU was used: the time of the hosts, from the operators in the traces."
            return Part(_IDENTITY, _TITLE, lead, sections=host.sections())
        return Part(_IDENTITY, _TITLE, absent=why_absent(analysis, "breakdown"))
    rows = _list_rows(breakdown)
    selection = select_rows([row.times_ms[-1] for row in rows], _MOST_ROWS, "idle time")
    shown = [rows[index] for index in selection.rows]
    chart = _chart(shown)
    idle = result_of(analysis, "idle", Idle)
    lead = (
        "What each device did, exactly: compute hides communication, and both hide copies; the parts add up to the "
        "window. "
    )
    sections = (*breakdown.sections(), *(idle.sections() if idle else ()))
    return Part(_IDENTITY, _TITLE, (lead + selection.note).strip(), (Figure((chart,), _table(rows)),), sections)


def _list_rows(breakdown: Breakdown) -> list[_Row]:
    rows = []
    for rank in breakdown.ranks:
        steps = rank.steps
        if len(breakdown.ranks) <= _MOST_ROWS and steps:
            rows += [
                _Row(f"{rank_name(rank.rank)} · step {step.name.rpartition('#')[2]}", step.parts) for step in steps
            ]
        else:
            rows.append(_Row(rank_name(rank.rank), rank.row))
    return rows


def _chart(rows: list[_Row]) -> Chart:
    stacked = stack_spans([row.times_ms for row in rows])
    marks = tuple(
        Spans(
            name,
            colour,
            tuple(
                Span(index, *edges[kind], f"{rows[index].name}: {name} {edges[kind][1] - edges[kind][0]:,.2f} ms")
                for index, edges in enumerate(stacked)
                if edges[kind][1] > edges[kind][0]
            ),
        )
        for kind, (name, colour) in enumerate(_KINDS)
    )
    description = (
        f"A bar for each of {len(rows)} ranks and steps, in milliseconds: {', '.join(name for name, _ in _KINDS)}."
    )
    axis = Values("ms", low=0)
    names = Categories("", tuple(row.name for row in rows))
    return Chart("Device time by rank and step", description, axis, names, marks, row_height=fit_row_height(len(rows)))


def _table(rows: list[_Row]) -> Section:
    columns = (
        Column("Rank and step"),
        *(Column(f"{name.capitalize()} (ms)", 3) for name, _ in _KINDS),
        Column("Idle (%)"),
    )
    cells: list[tuple[Cell, ...]] = [
        (row.name, *row.times_ms, percent_of(row.times_ms[-1], sum(row.times_ms))) for row in rows
    ]
    return Section("Device time by rank and step", columns, tuple(cells))
