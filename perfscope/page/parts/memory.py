"""Memory of the devices: the peak of tensors, the use of all processes, and what there is."""

from __future__ import annotations

from perfscope.analyzers.gpus import Gpus
from perfscope.analyzers.memory.peak import chart_memory
from perfscope.analyzers.memory.result import MemoryUse
from perfscope.analyzers.steps import StepTimes
from perfscope.charts.grammar import Categories, Chart, Span, Spans, Values
from perfscope.charts.palette import Colour
from perfscope.constants import GB
from perfscope.engine.run import Analysis
from perfscope.page.part import Figure, Part, rank_name, result_of, why_absent
from perfscope.page.selection import fit_row_height, select_rows
from perfscope.report import Cell, Column, Section, percent_of

_IDENTITY, _TITLE = "memory", "Memory"
_MOST_ROWS = 48


def show_memory(analysis: Analysis) -> Part:
    """A bar for each rank: tensors, everything else in use, and what is free, at their maximum."""
    steps, gpus = result_of(analysis, "steps", StepTimes), result_of(analysis, "gpus", Gpus)
    use = result_of(analysis, "memory", MemoryUse)
    over_time = () if use is None else (_figure_over_time(use),)
    tables = () if use is None else use.sections()
    if analysis.run is None and use is None:
        return Part(_IDENTITY, _TITLE, absent=why_absent(analysis, "steps"))
    peaks = {rank.rank: rank.memory_peak_bytes for rank in steps.ranks} if steps else {}
    of_gpu = {gpu.ranks[0]: gpu for gpu in gpus.gpus if len(gpu.ranks) == 1} if gpus else {}
    ranks = sorted({rank for rank, peak in peaks.items() if peak} | set(of_gpu))
    rows: list[tuple[int, float | None, float | None, float | None]] = []
    for rank in ranks:
        gpu, peak = of_gpu.get(rank), peaks.get(rank)
        used, total = (gpu.memory_used_bytes, gpu.memory_total_bytes) if gpu else (None, None)
        peak_gb, used_gb, total_gb = (value / GB if value else None for value in (peak, used, total))
        rows.append((rank, peak_gb, used_gb, total_gb))
    rows = [row for row in rows if row[1] or row[2]]
    if not rows and over_time:
        return Part(_IDENTITY, _TITLE, "What tensors held over the window, by what they are for.", over_time, tables)
    if not rows:
        reason = "Nothing to show: no rank recorded the memory of its device, and NVML was not sampled on it."
        return Part(_IDENTITY, _TITLE, absent=reason)
    selection = select_rows([row[2] or row[1] or 0.0 for row in rows], _MOST_ROWS, "memory in use")
    shown = [rows[index] for index in selection.rows]
    lead = "The most that each rank's device held: tensors by torch's allocator, all use by NVML. GB is 10^9 bytes. "
    return Part(
        _IDENTITY, _TITLE, (lead + selection.note).strip(), (Figure((_chart(shown),), _table(rows)), *over_time), tables
    )


def _figure_over_time(use: MemoryUse) -> Figure:
    """What the fullest device held over its window, by category, and its peak in figures."""
    peak = use.fullest
    cells: list[tuple[Cell, ...]] = [
        (part.name, part.bytes / GB, percent_of(part.bytes, peak.peak_bytes)) for part in peak.categories if part.bytes
    ]
    columns = (Column("Category"), Column("At the peak (GB)", 3), Column("Share (%)"))
    return Figure((chart_memory(peak),), Section("Peak by category", columns, tuple(cells)))


def _chart(rows: list[tuple[int, float | None, float | None, float | None]]) -> Chart:
    tensors, rest, free = [], [], []
    for index, (rank, peak, used, total) in enumerate(rows):
        name, first, second = rank_name(rank), peak or 0.0, max(used or 0.0, peak or 0.0)
        if peak:
            tensors.append(Span(index, 0, peak, f"{name}: tensors {peak:,.2f} GB"))
        if used:
            rest.append(Span(index, first, second, f"{name}: {used:,.2f} GB in use by NVML"))
        if total:
            free.append(Span(index, second, total, f"{name}: {total:,.2f} GB in total"))
    return Chart(
        "Peak memory by rank",
        f"The largest use of memory on {len(rows)} ranks, in GB.",
        Values("GB", low=0),
        Categories("", tuple(rank_name(row[0]) for row in rows)),
        (
            Spans("tensors", Colour.COMPUTE, tuple(tensors)),
            Spans("other use: caches, contexts, NCCL, other processes", Colour.COPY, tuple(rest)),
            Spans("never used", Colour.IDLE, tuple(free)),
        ),
        row_height=fit_row_height(len(rows)),
    )


def _table(rows: list[tuple[int, float | None, float | None, float | None]]) -> Section:
    columns = (Column("Rank"), Column("Tensors (GB)", 3), Column("In use (GB)", 3), Column("Total (GB)", 3))
    cells: list[tuple[Cell, ...]] = list(rows)
    return Section("Peak memory by rank", columns, tuple(cells))
