"""``perfscope bubble`` of traces or a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfscope.analyzers.pipeline_bubble import require_passes
from perfscope.analyzers.pipelines.bubble import ASSUMPTION, list_measured_alternatives
from perfscope.analyzers.pipelines.bubble_report import assemble_pipelines
from perfscope.analyzers.pipelines.layout import ParallelSizes
from perfscope.analyzers.pipelines.rank_passes import RankPasses
from perfscope.commands.bubble.prediction import SCHEMA, headline, write_charts
from perfscope.commands.options.common import require_positive
from perfscope.engine.run import measure_with
from perfscope.errors import ExitCode
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Json, Report
from perfscope.schedules.prediction_report import alternatives_data, alternatives_section
from perfscope.tables.run import Run


def measure_bubble(
    paths: Sequence[str], sizes: tuple[int | None, int | None, int | None], output: Path | None, output_format: Format
) -> Outcome:
    """Measure the bubble of a run's folder or of traces.

    Args:
        paths: A run's folder, or traces.
        sizes: Tensor-, pipeline- and data-parallel size, where the user set them.
        output: SVG file to draw the schedule to.
        output_format: Format of the report.
    """
    measured = measure_with("pipeline_bubble", RankPasses, paths)
    partials, damage = measured.partials, measured.damage
    pipelines = _list_pipelines(sizes, [partial.world_size for partial in partials]) or _find_run_pipelines(
        measured.run
    )
    require_passes(partials)
    result = assemble_pipelines(partials, pipelines)
    bubble = result.bubble
    step = bubble.steps[0]
    title = (
        f"{step.schedule or 'unknown schedule'}, {bubble.stages} stages, {step.microbatches} micro-batches, measured"
    )
    notes = write_charts(bubble.charts, output) if output else ()
    alternatives = list_measured_alternatives(bubble)
    data: dict[str, Json] = {
        "schema": SCHEMA,
        "inputs": list(paths),
        "windows": measured.windows.data(),
        "pipeline_bubble": result.data(),
        "alternatives": alternatives_data(alternatives),
    }
    first, *following = result.sections()
    first = replace(first, notes=(*first.notes, *measured.windows.describe(), *measured.windows.notes))
    sections = (first, *following, *((alternatives_section(alternatives, ASSUMPTION),) if alternatives else ()))
    report = Report(headline(bubble.fraction_of_total, title), data, sections, tuple(damage))
    warnings = tuple(f"warning: {line}" for line in damage)
    exit_code = ExitCode.DAMAGED_INPUT if damage else ExitCode.OK
    return Outcome(report, output_format, notes=(*notes, *warnings), exit_code=exit_code)


def _list_pipelines(
    sizes: tuple[int | None, int | None, int | None], world_sizes: Sequence[int | None]
) -> Sequence[Sequence[int]]:
    """The pipelines of the sizes that the user set; empty without any."""
    if all(size is None for size in sizes):
        return ()
    tensor, pipeline, data = (require_positive("a size", 1 if size is None else size) for size in sizes)
    world_size = next((size for size in world_sizes if size is not None), tensor * pipeline * data)
    return ParallelSizes(tensor, pipeline, data).list_pipelines(world_size)


def _find_run_pipelines(run: Run | None) -> Sequence[Sequence[int]]:
    """The pipelines of a run whose framework recorded the ranks' coordinates; empty otherwise."""
    members: dict[tuple[tuple[str, int], ...], list[tuple[int, int]]] = {}
    for rank in run.ranks if run else ():
        if "pp" not in rank.parallel:
            return ()
        coordinates = tuple(sorted((axis, index) for axis, index in rank.parallel.items() if axis != "pp"))
        members.setdefault(coordinates, []).append((rank.parallel["pp"], rank.rank))
    pipelines = [[rank for _, rank in sorted(set(ranks))] for _, ranks in sorted(members.items())]
    return pipelines if all(len(ranks) > 1 for ranks in pipelines) else ()
