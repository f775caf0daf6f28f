"""Kernels by their time on the device."""

from __future__ import annotations

from perfscope.analyzers.kernels import Kernels
from perfscope.charts.grammar import Categories, Chart, Span, Spans, Values
from perfscope.charts.palette import Colour
from perfscope.constants import NS_PER_MS
from perfscope.engine.run import Analysis
from perfscope.page.part import Figure, Part
from perfscope.page.parts.results import result_of, why_absent
from perfscope.report import Cell, Column, Section
from perfscope.tables.kernel_classes import short_name
from perfscope.tables.trace import Work

_IDENTITY, _TITLE = "kernels", "Kernels"
_MOST = 16
_COLOURS = {
    Work.COMPUTE: ("compute", Colour.COMPUTE),
    Work.COMMUNICATION: ("communication", Colour.COMMUNICATION),
    Work.COPY: ("copy", Colour.COPY),
    Work.FUSED: ("compute with communication", Colour.BESIDE),
}


def show_kernels(analysis: Analysis) -> Part:
    """A bar for each of the most expensive kernels."""
    kernels = result_of(analysis, "kernels", Kernels)
    if kernels is None:
        return Part(_IDENTITY, _TITLE, absent=why_absent(analysis, "kernels"))
    shown = kernels.names[:_MOST]
    marks = tuple(
        Spans(
            label,
            colour,
            tuple(
                Span(
                    row, 0, times.total / NS_PER_MS, f"{name}: {times.calls:,} calls, {times.total / NS_PER_MS:,.2f} ms"
                )
                for row, (name, work, times) in enumerate(shown)
                if work is kind
            ),
        )
        for kind, (label, colour) in _COLOURS.items()
        if any(work is kind for _, work, _ in shown)
    )
    chart = Chart(
        "The most expensive kernels",
        f"Time of the {len(shown)} most expensive of {len(kernels.names)} kernels and copies, over all ranks.",
        Values("ms over all ranks", low=0),
        Categories("", tuple(short_name(name) for name, _, _ in shown)),
        marks,
        row_height=20,
    )
    columns = (Column("Kernel"), Column("Calls"), Column("Total (ms)", 3), Column("Longest (ms)", 3))
    rows: list[tuple[Cell, ...]] = [
        (name, times.calls, times.total / NS_PER_MS, times.longest / NS_PER_MS) for name, _, times in shown
    ]
    lead = f"{len(shown)} of {len(kernels.names)} names, by their time on all devices."
    figure = Figure((chart,), Section("The most expensive kernels", columns, tuple(rows)))
    return Part(_IDENTITY, _TITLE, lead, (figure,), kernels.sections())
