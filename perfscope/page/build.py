"""Builds pages: of an analysis, of a comparison, of several runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfscope.aggregation.tables import Grouping, aggregate
from perfscope.analyzers.breakdown import Breakdown
from perfscope.analyzers.comparison.comparison import Comparison
from perfscope.analyzers.comparison.report import describe_verdict
from perfscope.analyzers.energy import Energy
from perfscope.analyzers.gpus import Gpus
from perfscope.analyzers.mfu import Utilisation
from perfscope.analyzers.scaling.study import Scaling
from perfscope.analyzers.steps import StepTimes
from perfscope.constants import GB, MANY_RANKS
from perfscope.engine.analysis_report import find_groupings
from perfscope.engine.run import Analysis
from perfscope.page.html import render
from perfscope.page.part import Document, Figure, Part, Tile, result_of
from perfscope.page.parts.breakdown import show_breakdown
from perfscope.page.parts.checkpoints import show_checkpoints
from perfscope.page.parts.communication import show_collectives, show_overlap, show_stragglers
from perfscope.page.parts.critical_path import show_critical_path
from perfscope.page.parts.difference import show_difference
from perfscope.page.parts.findings import show_findings
from perfscope.page.parts.gpus import show_gpus
from perfscope.page.parts.kernels import show_kernels
from perfscope.page.parts.memory import show_memory
from perfscope.page.parts.modules import show_modules
from perfscope.page.parts.pipeline import show_pipeline
from perfscope.page.parts.steps import show_steps
from perfscope.page.parts.timeline import show_timeline
from perfscope.page.parts.wall_clock import show_wall_clock
from perfscope.report import Cell, Column, Section, percent
from perfscope.units import format_count, format_seconds

_PARTS = (
    show_findings, show_steps, show_wall_clock, show_breakdown, show_timeline, show_overlap, show_collectives,
    show_stragglers, show_gpus, show_pipeline, show_critical_path, show_kernels, show_modules, show_memory,
)  # fmt: skip


def build_page(analysis: Analysis) -> str:
    """The page of a run or of traces, as HTML; its analysis is that of ``read_for_page``, or any other one."""
    return render(describe_analysis(analysis))


def build_comparison_page(comparison: Comparison) -> str:
    """The page of a comparison, as HTML."""
    return render(describe_comparison(comparison))


def describe_comparison(comparison: Comparison) -> Document:
    """What the page of a comparison shows."""
    title = describe_verdict(comparison)
    facts = (f"A: {comparison.a.name}", f"B: {comparison.b.name}")
    return Document(title, facts, comparison.damage, comparison.reasons, (), (show_difference(comparison),))


def describe_scaling(study: Scaling, problems: tuple[str, ...] = ()) -> Document:
    """What the page of several runs on different numbers of GPUs shows; ``problems`` are of runs that could not be."""
    facts = (format_count(len(study.runs), "run"), f"{len(study.series)} series")
    return Document("Scaling", facts, problems, study.notes, (), (show_scaling(study),))


def describe_analysis(analysis: Analysis) -> Document:
    """What the page of an analysis shows, in its order."""
    run = analysis.run
    title = shlex.join(run.command) if run is not None and run.command else _name_inputs(analysis)
    parts = [show(analysis) for show in _PARTS]
    parts += [show_scaling(None), show_checkpoints(analysis), _difference_of_one(), show_others(analysis)]
    groupings = find_groupings(analysis)
    parts = [_aggregate_tables(part, groupings) for part in parts]
    remarks = (*analysis.windows.describe(), *analysis.windows.notes)
    return Document(
        title, tuple(_list_facts(analysis)), analysis.damage, remarks, tuple(_list_tiles(analysis)), tuple(parts)
    )


def _aggregate_tables(part: Part, groupings: Sequence[Grouping]) -> Part:
    """A part whose tables of very many ranks are quantiles, groups and outliers."""
    figures = tuple(
        figure if figure.values is None else replace(figure, values=aggregate(figure.values, groupings))
        for figure in part.figures
    )
    return replace(part, figures=figures, sections=tuple(aggregate(section, groupings) for section in part.sections))


def _name_inputs(analysis: Analysis) -> str:
    """What was read: a run, a trace, or the folder of very many traces, of which none stands for the others."""
    first = analysis.inputs[0]
    folder = first.rpartition("/")[0]
    is_shared = all(path.rpartition("/")[0] == folder for path in analysis.inputs)
    return folder if analysis.run is None and len(analysis.inputs) > MANY_RANKS and folder and is_shared else first


def _difference_of_one() -> Part:
    reason = "Nothing to show: this is one run. `perfscope page A B` shows what the difference of two is made of."
    return Part("difference", "Budget of the difference", absent=reason)


def _list_facts(analysis: Analysis) -> Iterator[str]:
    run = analysis.run
    gpus = result_of(analysis, "gpus", Gpus)
    if run is None:
        yield format_count(len(analysis.inputs), "trace")
        return
    yield format_count(len({rank.rank for rank in run.ranks}) or len(run.steps), "rank")
    hosts = {rank.host for rank in run.ranks}
    if len(hosts) > 1:
        yield format_count(len(hosts), "host")
    if gpus is not None:
        yield from sorted({gpu.name for gpu in gpus.gpus})
    steps = result_of(analysis, "steps", StepTimes)
    if steps is not None:
        yield f"{format_count(steps.count, 'step')}, counted by {steps.source}"
    if run.exit_status:
        yield f"the command {run.exit_status}"
    yield f"from {run.path}"


def _list_tiles(analysis: Analysis) -> Iterator[Tile]:
    steps = result_of(analysis, "steps", StepTimes)
    if steps is not None and steps.step_time_s is not None:
        yield Tile("step time", format_seconds(steps.step_time_s), steps.step_time_s, "/results/steps/step_time_s")
    if steps is not None and steps.tokens_per_s is not None:
        yield Tile("tokens/s", f"{steps.tokens_per_s:,.0f}", steps.tokens_per_s, "/results/steps/tokens_per_s")
    elif steps is not None and steps.samples_per_s is not None:
        yield Tile("samples/s", f"{steps.samples_per_s:,.1f}", steps.samples_per_s, "/results/steps/samples_per_s")
    utilisation = result_of(analysis, "mfu", Utilisation)
    if utilisation is not None:
        headline = utilisation.headline
        if headline.mfu is not None:
            text = f"{percent(headline.mfu):.1f} %"
            yield Tile(f"MFU by {headline.name}", text, headline.mfu, "/results/mfu/mfu")
    breakdown = result_of(analysis, "breakdown", Breakdown)
    if breakdown is not None and breakdown.row.window:
        yield from _shares_of_window(breakdown)
    energy = result_of(analysis, "energy", Energy)
    if energy is not None and energy.step_j is not None:
        yield Tile("energy of a step", f"{energy.step_j:,.0f} J", energy.step_j, "/results/energy/step_j")
    peaks = [rank.memory_peak_bytes for rank in steps.ranks] if steps is not None else []
    largest = max((peak for peak in peaks if peak is not None), default=None)
    if largest is not None:
        pointer = f"/results/steps/ranks/{peaks.index(largest)}/memory_peak_bytes"
        yield Tile("peak of tensors", f"{largest / GB:,.1f} GB", largest, pointer)


def _shares_of_window(breakdown: Breakdown) -> Iterator[Tile]:
    """Shares of the profiled time; the figures are the times of which they are shares."""
    key, parts = ("all_marked", breakdown.row) if breakdown.row is not breakdown.total else ("all", breakdown.total)
    for label, name in (
        ("compute", "compute_us"),
        ("exposed communication", "exposed_communication_us"),
        ("idle", "idle_us"),
    ):
        time_us: float = getattr(parts, name)
        pointer = f"/results/breakdown/{key}/{name}"
        yield Tile(label, f"{percent(time_us / parts.window_us):.1f} %", time_us, pointer)


#: Results whose tables stand below a chart.
_DRAWN = frozenset(
    (
        "findings", "wall_clock", "steps", "gpus", "energy", "throttling", "breakdown", "host", "idle", "overlap",
        "collectives", "stragglers", "pipeline_bubble", "pipeline_steps", "whatif", "kernels", "memory", "saves",
        "timeline", "modules",
    )
)  # fmt: skip


def show_others(analysis: Analysis) -> Part:
    """The tables of all other results, and the reasons of those that are absent."""
    sections = [
        section for name, result in analysis.results.items() if name not in _DRAWN for section in result.sections()
    ]
    if analysis.skipped:
        rows = tuple((skip.analyzer, skip.reason) for skip in analysis.skipped)
        sections.append(Section("Not computed", (Column("Result"), Column("Reason")), rows))
    if not sections:
        return Part("others", "Other results", absent="Nothing to show: all results are drawn above.")
    lead = "Tables of `perfscope analyze` that no chart draws, and what could not be computed."
    return Part("others", "Other results", lead, sections=tuple(sections))


def show_scaling(study: Scaling | None) -> Part:
    """Measured medians, the ideal line, and every law."""
    if study is None:
        reason = (
            "Nothing to show: one run has one number of GPUs. `perfscope page` draws the curve of several runs on "
            "different numbers of GPUs."
        )
        return Part("scaling", "Scaling", absent=reason)
    sections = study.sections()
    if not study.series:
        reason = "Nothing to draw: no set-up was run on two different numbers of GPUs."
        return Part("scaling", "Scaling", reason, sections=sections)
    columns = (Column("Model"), Column("GPUs"), Column("Samples/s", 3))
    rows: list[tuple[Cell, ...]] = [
        (series.model, point.gpus, point.median_speed) for series in study.series for point in series.points
    ]
    figure = Figure((study.chart(),), Section("Throughput over GPUs", columns, tuple(rows)))
    return Part("scaling", "Scaling", "Measured medians, the ideal line, and the fitted laws.", (figure,), sections)
