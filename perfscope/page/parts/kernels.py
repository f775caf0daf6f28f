"""Kernels by their time on the device."""

from __future__ import annotations

from perfscope.analyzers.kernels import Kernels, KernelWork
from perfscope.charts.grammar import Categories, Chart, Span, Spans, Values
from perfscope.charts.palette import Colour
from perfscope.constants import NS_PER_MS, US_PER_MS
from perfscope.engine.run import Analysis
from perfscope.page.part import Figure, Part, result_of, why_absent
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
                Span(row, 0, kernel.total_ns / NS_PER_MS, _describe(kernel))
                for row, kernel in enumerate(shown)
                if kernel.work == work.name.lower()
            ),
        )
        for work, (label, colour) in _COLOURS.items()
        if any(kernel.work == work.name.lower() for kernel in shown)
    )
    chart = Chart(
        "The most expensive kernels",
        f"Time of the {len(shown)} most expensive of {len(kernels.names)} kernels and copies, over all ranks.",
        Values("ms over all ranks", low=0),
        Categories("", tuple(short_name(kernel.name) for kernel in shown)),
        marks,
        row_height=20,
    )
    columns = (Column("Kernel"), Column("Calls"), Column("Total (ms)", 3), Column("Longest (ms)", 3))
    rows: list[tuple[Cell, ...]] = [
        (kernel.name, kernel.calls, kernel.total_ns / NS_PER_MS, kernel.max_us / US_PER_MS) for kernel in shown
    ]
    lead = f"{len(shown)} of {len(kernels.names)} names, by their time on all devices."
    figure = Figure((chart,), Section("The most expensive kernels", columns, tuple(rows)))
    return Part(_IDENTITY, _TITLE, lead, (figure,), kernels.sections())


def _describe(kernel: KernelWork) -> str:
    return f"{kernel.name}: {kernel.calls:,} calls, {kernel.total_ns / NS_PER_MS:,.2f} ms"
