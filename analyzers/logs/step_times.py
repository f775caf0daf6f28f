"""The time of an iteration, over steady-state records.

Warm-up is the first record of every start, and the next one where that counts the first iteration again; or the
requested number of iterations. A record whose time also contains an evaluation or a checkpoint save is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.shared.statistics import count_values
from perfscope.constants import NS_PER_S
from perfscope.tables.columns import Bool
from perfscope.tables.joblog import Iterations, JobLog

_LEAST_STEADY_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The time of an iteration.

    Attributes:
        records: Records that the figures are over.
        median_s, p95_s, mean_s, min_s, max_s: Over those.
        median_interval_s: Bootstrap interval of the median; absent of fewer than three records.
        first_s: The first record.
        mean_all_s: Over all records, warm-up and disturbed ones too, as BigScience's one-liner has it.
        warmup: Records left out as warm-up.
        evaluation, save: Records left out because their time contains one.
    """

    records: int
    median_s: float | None
    p95_s: float | None
    mean_s: float | None
    min_s: float | None
    max_s: float | None
    median_interval_s: tuple[float, float] | None
    first_s: float | None
    mean_all_s: float | None
    warmup: int
    evaluation: int
    save: int


def steady_records(rows: Iterations, warmup: int | None) -> Bool:
    """Which records are steady: timed, not warm-up, and not disturbed.

    Where most are disturbed, those without an evaluation are, and where there are too few of these, all.
    ``warmup`` is a number of iterations of every start; None leaves out one record.
    """
    timed = ~np.ma.getmaskarray(rows.wall_ns)
    settled = timed & ~warmup_records(rows, warmup)
    if not settled.any():
        return timed if warmup is None else settled
    fewest = max(_LEAST_STEADY_SHARE * settled.sum(), 1)
    choices = (settled & (rows.disturbed == ""), settled & (rows.disturbed != "evaluation"))
    return next((rows for rows in choices if rows.sum() >= fewest), settled)


def warmup_records(rows: Iterations, warmup: int | None) -> Bool:
    """Which records are warm-up: with N iterations of warm-up, every record that contains one of them."""
    before = rows.before
    if warmup is not None:
        flags: Bool = before < warmup
        return flags
    # The second record of a start can count the first iteration again.
    return before <= 0


def measure_step_times(log: JobLog, warmup: int | None) -> StepTimes:
    """Summarize the times of a log."""
    rows = log.iterations
    used = steady_records(rows, warmup)
    warm = warmup_records(rows, warmup) & ~used
    values = count_values(np.ma.getdata(rows.wall_ns)[used] / NS_PER_S)
    left_out = ~used & ~warm
    timed = rows.wall_ns.compressed()
    return StepTimes(
        records=values.n,
        median_s=values.median(),
        p95_s=values.quantile(0.95),
        mean_s=values.mean(),
        min_s=values.quantile(0.0),
        max_s=values.quantile(1.0),
        median_interval_s=values.median_interval(),
        first_s=float(timed[0]) / NS_PER_S if len(timed) else None,
        mean_all_s=_mean_of_all(log),
        warmup=int(warm.sum()),
        evaluation=int((left_out & (rows.disturbed == "evaluation")).sum()),
        save=int((left_out & (rows.disturbed == "save")).sum()),
    )


def _mean_of_all(log: JobLog) -> float | None:
    times = log.iterations.wall_ns.compressed()
    return int(times.sum()) / len(times) / NS_PER_S if len(times) else None
