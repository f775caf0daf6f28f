"""How long a training step takes and how much it processes, as the host saw it.

A rank's step lasts from one step boundary to the next, without checkpoint saves and validation. The job's step lasts
from its latest begin on a rank to its latest end. The step time is the mean of the undisturbed steps, and throughput is
the work of a step over it. The median is given as the typical step. Disturbed steps are reported separately, because
they cost more than training does, or less where a save waited for the device. They are the first steps, profiled steps
and their warm-up, the step after an export, and steps with a checkpoint save or validation. So are the steps after a
window that slowed them. Fewer than five undisturbed steps give no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from perfscope.analyzers.shared.statistics import maximum, mean, median, percentile
from perfscope.analyzers.shared.step_selection import (
    UndisturbedSteps,
    find_undisturbed,
    job_times_s,
    profiled_steps,
    steps_after_export,
)
from perfscope.analyzers.steps.notes import describe_unreached_windows, write_notes
from perfscope.analyzers.steps.result import RankSteps, StepMeans, StepTimes
from perfscope.constants import NS_PER_S
from perfscope.errors import MissingInput
from perfscope.report import in_unit
from perfscope.tables.columns import Bool, MaskedInt64, present
from perfscope.tables.run import Rank, Run
from perfscope.tables.steps import Steps
from perfscope.wire.axes import counts_samples, counts_tokens

#: torch.compile may need some steps until it has seen every shape.
_FIRST_STEPS = 5


def analyze(run: Run) -> StepTimes:
    """Summarize the steps of every rank.

    Raises:
        MissingInput: No rank completed a training step.
    """
    return _summarize(run)


@lru_cache(maxsize=1)  # energy asks for those of the same run
def _summarize(run: Run) -> StepTimes:
    undisturbed = find_undisturbed(run.steps)
    tables = undisturbed.tables
    if not tables:
        raise MissingInput("no training step was recorded")
    ranks = tuple(_summarize_rank(table, undisturbed) for table in tables)
    times_s = undisturbed.times_s()
    step_time_s = undisturbed.step_time_s()
    samples, tokens = _work_of_step(ranks, {rank.rank: rank for rank in run.ranks})
    return StepTimes(
        source=str(tables[0].source[-1]),
        count=max(rank.count for rank in ranks),
        step_time_s=step_time_s,
        median_s=median(times_s),
        p95_s=percentile(times_s, 95),
        first_s=max((rank.first_s for rank in ranks if rank.first_s is not None), default=None),
        profiled_s=median(job_times_s(tables, profiled_steps)),
        export_s=median(job_times_s(tables, steps_after_export)),
        samples_per_step=samples,
        tokens_per_step=tokens,
        samples_per_s=_rate(samples, step_time_s),
        tokens_per_s=_rate(tokens, step_time_s),
        ranks=ranks,
        undisturbed_ns=tuple(undisturbed.job_ns.tolist()),
        window_effect=undisturbed.effect,
        unreached_windows=tuple(describe_unreached_windows(run, max(rank.count for rank in ranks))),
        notes=write_notes(run, ranks, undisturbed),
        micro_batches=max((rank.micro_batches for rank in ranks if rank.micro_batches is not None), default=None),
    )


def _summarize_rank(steps: Steps, undisturbed: UndisturbedSteps) -> RankSteps:
    steady = undisturbed.mask(steps)
    times_ns = steps.wall_ns[steady].compressed()
    times_s = times_ns / NS_PER_S
    return RankSteps(
        rank=steps.rank,
        count=len(steps),
        skipped=int(steps.skipped.sum()),
        undisturbed=len(times_s),
        step_time_s=in_unit(mean(times_ns), NS_PER_S),
        median_s=median(times_s),
        p95_s=percentile(times_s, 95),
        first_s=median(steps.wall_ns[steps.step == 1] / NS_PER_S),
        profiled_s=median(steps.wall_ns[profiled_steps(steps)] / NS_PER_S),
        export_s=median(steps.wall_ns[steps_after_export(steps)] / NS_PER_S),
        data_wait_s=in_unit(median(steps.data_wait_ns[steady]), NS_PER_S),
        means=_measure_means(steps, steady),
        memory_peak_bytes=maximum(steps.memory_peak_bytes),
        micro_batches=median(_of_undisturbed(steps.micro_batches, steady)),
        samples=mean(_of_undisturbed(steps.samples, steady)),
        tokens=mean(_of_undisturbed(steps.tokens, steady)),
        global_samples=mean(_of_undisturbed(steps.global_samples, steady)),
    )


def _of_undisturbed(column: MaskedInt64, steady: Bool) -> MaskedInt64:
    """The work of undisturbed steps; of all steps where there is none, because windows do not change the work."""
    return column[steady] if column[steady].count() else column


def _work_of_step(ranks: Sequence[RankSteps], facts: Mapping[int, Rank]) -> tuple[float | None, float | None]:
    """Samples and tokens of a step over all ranks; what a framework states is preferred to what was counted."""
    stated = next((rank.global_samples for rank in ranks if rank.global_samples is not None), None)
    if not facts or len(ranks) < max(rank.world_size for rank in facts.values()):
        return stated, None
    placed = [(rank, facts[rank.rank].parallel if rank.rank in facts else {}) for rank in ranks]
    samples = _sum([rank.samples for rank, at in placed if counts_samples(at)]) if stated is None else stated
    return samples, _sum([rank.tokens for rank, at in placed if counts_tokens(at)])


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum; absent where a value is, or where there is none."""
    stated = [value for value in values if value is not None]
    return sum(stated) if stated and len(stated) == len(values) else None


def _rate(work: float | None, seconds: float | None) -> float | None:
    return work / seconds if work is not None and seconds else None


def _measure_means(steps: Steps, undisturbed: Bool) -> StepMeans:
    """The means of one rank."""
    waits = steps.data_wait_ns[undisturbed].compressed() / NS_PER_S
    later = steps.is_unstalled & (steps.step > _FIRST_STEPS)
    low, high = np.quantile(waits, (0.25, 0.75)).tolist() if len(waits) else (None, None)
    return StepMeans(
        data_wait_s=float(waits.mean()) if len(waits) else None,
        data_wait_low_s=low,
        data_wait_high_s=high,
        garbage_s=_mean(np.ma.filled(steps.garbage_ns, 0)[undisturbed]),
        garbage_steps=int(present(steps.garbage_ns)[undisturbed].sum()),
        compiled_steps=int(present(steps.compile_ns)[later].sum()),
        compile_s=_mean(np.ma.filled(steps.compile_ns, 0)[later]),
        compile_in_steps_s=_mean(np.ma.filled(steps.compile_ns, 0)[undisturbed]),
        device_allocs=_growth(steps, steps.device_allocs),
        alloc_retries=_growth(steps, steps.alloc_retries),
        samples=_mean_count(steps.samples[undisturbed]),
        tokens=_mean_count(steps.tokens[undisturbed]),
    )


def _mean(times_ns: np.ndarray) -> float | None:
    return float(times_ns.mean()) / NS_PER_S if len(times_ns) else None


def _mean_count(counts: MaskedInt64) -> float | None:
    stated = counts.compressed()
    return float(stated.mean()) if len(stated) else None


def _growth(steps: Steps, count: MaskedInt64) -> float | None:
    """How much a count grows in a step, from the first reading behind the first steps to the last one."""
    rows = np.flatnonzero(present(count) & (steps.step > _FIRST_STEPS))
    if len(rows) < 2:  # noqa: PLR2004 - a first reading and a last one
        return None
    first, last = rows[0], rows[-1]
    return float(count[last] - count[first]) / float(steps.step[last] - steps.step[first])
