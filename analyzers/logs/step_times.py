"""The time of an iteration, over steady-state records.

Warm-up is the first record of every start, and the next one where that counts the first iteration again; or the
requested number of iterations. A record whose time also contains an evaluation or a checkpoint save is left out.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.measures.statistics import count_values
from perfscope.result import Doc, Figures
from perfscope.tables.columns import Bool
from perfscope.tables.joblog import Iterations, JobLog


class LeftOut(Figures, frozen=True):
    """Records that the figures are not over."""

    warmup: Annotated[int, Doc("As warm-up.")]
    evaluation: Annotated[int, Doc("Because their time contains an evaluation.")]
    save: Annotated[int, Doc("Because their time contains a checkpoint save.")]


class LoggedStepTimes(Figures, frozen=True):
    """The time of an iteration; each figure is null without a record."""

    used_records: Annotated[int, Doc("Records that the figures are over.")]
    median_s: Annotated[float | None, Doc("Median.")]
    p95_s: Annotated[float | None, Doc("95th percentile.")]
    mean_s: Annotated[float | None, Doc("Mean.")]
    min_s: Annotated[float | None, Doc("Shortest.")]
    max_s: Annotated[float | None, Doc("Longest.")]
    median_interval_s: Annotated[tuple[float, float] | None, Doc("95 % interval of the median.")]
    first_s: Annotated[float | None, Doc("The first record.")]
    mean_all_s: Annotated[
        float | None, Doc("Mean of all records, warm-up and disturbed ones too, as BigScience's one-liner has it.")
    ]
    left_out: Annotated[LeftOut, Doc("Records that the figures are not over.")]


def steady_records(rows: Iterations, warmup: int | None) -> Bool:
    """Which records are steady: timed, not warm-up, and not disturbed.

    Where most are disturbed, those without an evaluation are, and where there are too few of these, all.
    ``warmup`` is a number of iterations of every start; None leaves out one record.
    """
    timed = ~np.ma.getmaskarray(rows.wall_ns)
    settled = timed & ~warmup_records(rows, warmup)
    if not settled.any():
        return timed if warmup is None else settled
    choices = (settled & (rows.disturbed == ""), settled & (rows.disturbed != "evaluation"))
    return next((rows for rows in choices if 2 * rows.sum() >= settled.sum()), settled)


def warmup_records(rows: Iterations, warmup: int | None) -> Bool:
    """Which records are warm-up: with N iterations of warm-up, every record that contains one of them."""
    before = rows.before
    if warmup is not None:
        flags: Bool = before < warmup
        return flags
    # The second record of a start can count the first iteration again.
    return before <= 0


def measure_step_times(log: JobLog, warmup: int | None) -> LoggedStepTimes:
    """Summarize the times of a log."""
    rows = log.iterations
    used = steady_records(rows, warmup)
    warm = warmup_records(rows, warmup) & ~used
    values = count_values(np.ma.getdata(rows.wall_ns)[used] / NS_PER_S)
    left_out = ~used & ~warm
    timed = rows.wall_ns.compressed()
    return LoggedStepTimes(
        used_records=values.n,
        median_s=values.median(),
        p95_s=values.quantile(0.95),
        mean_s=values.mean(),
        min_s=values.quantile(0.0),
        max_s=values.quantile(1.0),
        median_interval_s=values.median_interval(),
        first_s=float(timed[0]) / NS_PER_S if len(timed) else None,
        mean_all_s=int(timed.sum()) / len(timed) / NS_PER_S if len(timed) else None,
        left_out=LeftOut(
            int(warm.sum()),
            int((left_out & (rows.disturbed == "evaluation")).sum()),
            int((left_out & (rows.disturbed == "save")).sum()),
        ),
    )
