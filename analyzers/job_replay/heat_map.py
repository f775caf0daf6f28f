"""A heat map of the slowdown by worker: a row a stage, a column a pipeline."""

from __future__ import annotations

from perfscope.analyzers.job_replay.slowdown import Slowdowns
from perfscope.charts.grammar import Categories, Chart, Heat, HeatCell

#: The slowdown from which a cell is hottest.
_HOTTEST = 1.5


def chart_heat_map(slowdowns: Slowdowns) -> Chart:
    """S of each worker; each cell names its rank when pointed at."""
    job = slowdowns.job
    cells = tuple(
        HeatCell(
            pipeline,
            stage,
            (slowdowns.by_worker[pipeline][stage] - 1) / (_HOTTEST - 1),
            f"{slowdowns.by_worker[pipeline][stage]:.2f}",
            f"rank {job.ranks[pipeline][stage]}: {slowdowns.by_worker[pipeline][stage]:.4f}",
        )
        for pipeline in range(job.pipelines)
        for stage in range(job.stages)
    )
    return Chart(
        f"Slowdown by worker (whole job: {slowdowns.slowdown:.3f})",
        f"S with only this worker as measured, for {job.stages} stages of {job.pipelines} pipelines.",
        Categories(
            f"S with only this worker as measured; darkest from {_HOTTEST}",
            tuple(f"DP {pipeline}" for pipeline in range(job.pipelines)),
        ),
        Categories("", tuple(f"stage {stage}" for stage in range(job.stages))),
        (Heat("", cells),),
        row_height=30,
    )
