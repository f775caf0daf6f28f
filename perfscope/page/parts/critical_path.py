"""The critical path of a step: what would have to be faster for the step to be faster."""

from __future__ import annotations

from collections import defaultdict

from perfscope.analyzers.replay.critical_path import COMMUNICATION, COMPUTE, COPY, DATA, HOST, LAUNCH
from perfscope.analyzers.whatif import WhatIf
from perfscope.charts.grammar import Categories, Chart, Span, Spans, Values
from perfscope.charts.palette import Colour
from perfscope.charts.svg import stack_spans
from perfscope.constants import NS_PER_MS
from perfscope.engine.run import Analysis
from perfscope.page.part import Figure, Part, rank_name, result_of, why_absent
from perfscope.report import Cell, Column, Section

_IDENTITY, _TITLE = "critical-path", "Critical path"
_COLOURS = {
    COMPUTE: Colour.COMPUTE,
    COMMUNICATION: Colour.COMMUNICATION,
    COPY: Colour.COPY,
    HOST: Colour.OPERATOR,
    DATA: Colour.DATA,
    LAUNCH: Colour.LAUNCH,
}


def show_critical_path(analysis: Analysis) -> Part:
    """The path's time by rank and cause, and what a replay with changes would save."""
    answer = result_of(analysis, "whatif", WhatIf)
    if answer is None:
        return Part(_IDENTITY, _TITLE, absent=why_absent(analysis, "whatif"))
    times_ms: defaultdict[tuple[int, str], float] = defaultdict(float)
    for part in answer.critical_path:
        times_ms[part.rank, part.cause] += part.time_ns / part.steps / NS_PER_MS
    ranks = sorted({rank for rank, _ in times_ms})
    causes = [cause for cause in _COLOURS if any((rank, cause) in times_ms for rank in ranks)]
    stacked = stack_spans([[times_ms[rank, cause] for cause in causes] for rank in ranks])
    marks = tuple(
        Spans(
            cause,
            _COLOURS[cause],
            tuple(
                Span(row, *edges[index], f"{rank_name(rank)}: {cause} {times_ms[rank, cause]:,.2f} ms of a step")
                for row, (rank, edges) in enumerate(zip(ranks, stacked, strict=True))
                if times_ms[rank, cause]
            ),
        )
        for index, cause in enumerate(causes)
    )
    whole_ms = sum(times_ms.values())
    chart = Chart(
        "Critical path by rank",
        f"The {whole_ms:.2f} ms of a step's critical path by rank and cause.",
        Values("ms of a step", low=0),
        Categories("", tuple(map(rank_name, ranks))),
        marks,
        row_height=26,
    )
    columns = (Column("Rank"), *(Column(f"{cause.capitalize()} (ms)", 3) for cause in causes))
    rows: list[tuple[Cell, ...]] = [(rank_name(rank), *(times_ms[rank, cause] for cause in causes)) for rank in ranks]
    lead = (
        f"From the end of a step back to its begin, always to what was waited for last: {whole_ms:,.2f} ms, on "
        f"{len(ranks)} rank{'s' * (len(ranks) > 1)}. Only what is on it makes a step faster. It is that of the "
        "profiled steps; `perfscope whatif` says what is left of it without the profiler."
    )
    figure = Figure((chart,), Section("Critical path by rank", columns, tuple(rows)))
    return Part(_IDENTITY, _TITLE, lead, (figure,), answer.sections())
