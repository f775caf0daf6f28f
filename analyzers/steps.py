"""How long a training step takes and how much it processes, as the host saw it.

A rank's step lasts from one step boundary to the next, without checkpoint saves and validation. The job's step lasts
from its latest begin on a rank to its latest end. The step time is the mean of the undisturbed steps, and throughput is
the work of a step over it. Disturbed are the first steps, profiled steps and their warm-up, the step after an export,
and steps with a checkpoint save or validation. So are the steps after a window that slowed them. Fewer than five
undisturbed steps give no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated

import numpy as np

from perfscope.constants import MS_PER_S, NS_PER_S
from perfscope.errors import MissingInput
from perfscope.frameworks import STEP_BOUNDARIES
from perfscope.measures.statistics import maximum, mean, median, percentile
from perfscope.measures.step_selection import (
    UndisturbedSteps,
    find_undisturbed,
    job_times_s,
    profiled_steps,
    steps_after_export,
)
from perfscope.measures.window_effect import Effect, WindowEffect
from perfscope.report import Section, in_unit
from perfscope.result import GIGABYTES, MS, Column, Doc, Figures, Result, Table
from perfscope.tables.columns import Bool, MaskedInt64, present
from perfscope.tables.run import Rank, Run
from perfscope.tables.steps import FEWEST_STEPS, FIRST_STEPS, Steps
from perfscope.units import format_count, format_ranges
from perfscope.wire.axes import counts_samples, counts_tokens


class StepMeans(Figures, frozen=True):
    """Means over the steps of a rank: a wait of every tenth step is in no median."""

    data_wait_s: Annotated[float | None, Doc("Waiting for data loaders in undisturbed steps, where one was seen.")]
    data_wait_low_s: Annotated[float | None, Doc("The quarter of them with the shortest waits waits at most so long.")]
    data_wait_high_s: Annotated[float | None, Doc("The quarter of them with the longest waits waits at least so long.")]
    garbage_s: Annotated[float | None, Doc("Full collections of Python's garbage in them.")]
    garbage_steps: Annotated[int, Doc("How many of them such a collection interrupted.")]
    compiled_steps: Annotated[int, Doc("Steps after the first five in which torch.compile compiled.")]
    compile_s: Annotated[float | None, Doc("Its time in a step after the first five, outside of windows and saves.")]
    compile_in_steps_s: Annotated[float | None, Doc("Its time in an undisturbed step.")]
    alloc_retries: Annotated[float | None, Doc("Emptied caches of the allocator in a step after the first five.")]
    samples: Annotated[float | None, Doc("Samples that the rank took in in an undisturbed step.")]
    tokens: Annotated[float | None, Doc("Tokens likewise.")]


class RankSteps(Figures, frozen=True):
    """The steps of one rank; samples and tokens are of a mean undisturbed step."""

    rank: Annotated[int, Doc("The rank.")]
    count: Annotated[int, Doc("All completed steps.")]
    skipped: Annotated[int, Doc("Steps that did not update the weights.")]
    undisturbed: Annotated[int, Doc("Steps that nothing beside training affected; 0 where these are fewer than five.")]
    step_time_s: Annotated[float | None, Doc("The sum of the undisturbed steps over their number.")]
    median_s: Annotated[float | None, Doc("Median of them.")]
    p95_s: Annotated[float | None, Doc("95th percentile of them.")]
    first_s: Annotated[float | None, Doc("The first step, from when training could begin.")]
    profiled_s: Annotated[float | None, Doc("Median of the steps inside windows.")]
    export_s: Annotated[float | None, Doc("Median of the steps after an export, the export itself excluded.")]
    data_wait_s: Annotated[float | None, Doc("Median wait for a data loader in an undisturbed step.")]
    memory_peak_bytes: Annotated[int | None, Doc("Peak device memory of tensors; None without a device.")]
    means: Annotated[StepMeans, Doc("What its steps lose beside their work.")]
    micro_batches: float | None
    samples: float | None
    tokens: float | None
    global_samples: float | None


class StepTimes(Result, frozen=True):
    """``results.steps``: step times and throughput, measured on the host."""

    count: Annotated[int, Doc("Completed training steps: the most that any rank completed.")]
    source: Annotated[str, Doc("What detected that a step completed.")]
    step_time_s: Annotated[
        float | None,
        Doc(
            "The job's step time: the sum of its undisturbed steps over their number. A step lasts from its "
            "latest begin on a rank to its latest end. None of fewer than five steps."
        ),
    ]
    median_s: Annotated[float | None, Doc("Median of the same steps.")]
    p95_s: Annotated[float | None, Doc("95th percentile of them.")]
    first_s: Annotated[float | None, Doc("The first step of the slowest rank.")]
    profiled_s: Annotated[float | None, Doc("Median of the profiled steps, of the job likewise.")]
    export_s: Annotated[float | None, Doc("Median of the steps after an export, likewise.")]
    samples_per_step: Annotated[float | None, Doc("Samples of a mean undisturbed step of all ranks.")]
    tokens_per_step: Annotated[float | None, Doc("Tokens likewise.")]
    samples_per_s: Annotated[float | None, Doc("``samples_per_step`` over ``step_time_s``.")]
    tokens_per_s: Annotated[float | None, Doc("``tokens_per_step`` over ``step_time_s``.")]
    undisturbed_ns: Annotated[tuple[int, ...], Doc("The times that the step time is the mean of, in their order.")]
    micro_batches: Annotated[float | None, Doc("Forward passes of a median step on a rank.")]
    window_effect: Annotated[WindowEffect | None, Doc("The steps before the first window, and after it.")]
    unreached_windows: Annotated[tuple[str, ...], Doc("Which windows training ended too early for.")]
    ranks: Annotated[tuple[RankSteps, ...], Doc("Each rank.")]
    notes: Annotated[tuple[str, ...], Doc("What a reader must know.")]

    TABLES = (
        Table(
            "Steps",
            "ranks",
            (
                Column("Rank", lambda rank: str(rank.rank)),
                Column("Steps", "count"),
                Column("Step time (ms)", "step_time_s", MS, 2),
                Column("Median (ms)", "median_s", MS, 2),
                Column("p95 (ms)", "p95_s", MS, 2),
                Column("First (ms)", "first_s", MS),
                Column("Profiled (ms)", "profiled_s", MS, 2),
                Column("After export (ms)", "export_s", MS, 2),
                Column("Data wait (ms)", "data_wait_s", MS, 2),
                Column("Peak memory (GB)", "memory_peak_bytes", GIGABYTES, 2),
            ),
        ),
    )

    def sections(self) -> tuple[Section, ...]:
        """A row a rank, and one for the run."""
        (table,) = self.TABLES
        rates = [
            f"{rate:,.1f} {unit}/s"
            for rate, unit in ((self.tokens_per_s, "tokens"), (self.samples_per_s, "samples"))
            if rate is not None
        ]
        notes = [*([f"Throughput over all ranks: {', '.join(rates)}."] if rates else []), *self.notes]
        if len(self.ranks) == 1:
            return (table.section(self.ranks, notes),)
        notes.append("all: each step from its latest begin on a rank to its latest end; first: of the slowest rank.")
        return (table.section(self.ranks, notes, totals=[table.row(self, "all")]),)


@lru_cache(maxsize=1)  # energy and MFU ask for those of the same run
def analyze(run: Run) -> StepTimes:
    """Summarize the steps of every rank; MissingInput where no rank completed a training step."""
    undisturbed = find_undisturbed(run.steps)
    tables = undisturbed.tables
    if not tables:
        raise MissingInput("no training step was recorded")
    ranks = tuple(_summarize_rank(table, undisturbed) for table in tables)
    times_s = undisturbed.times_s()
    step_time_s = undisturbed.step_time_s()
    samples, tokens = _work_of_step(ranks, {rank.rank: rank for rank in run.ranks})
    recorded, count = {window.first_step for window in run.windows}, max(rank.count for rank in ranks)
    unreached = tuple(
        f"Window {format_ranges(range(first, last + 1))} was not reached: training ended after step {count}; "
        "`--steps` takes earlier ones."
        for first, last in run.planned_windows
        if first not in recorded and first > count
    )
    return StepTimes(
        source=str(tables[0].source[-1]),
        count=count,
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
        unreached_windows=unreached,
        notes=_write_notes(run, ranks, undisturbed, unreached),
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
    stated = [value for value in values if value is not None]
    return sum(stated) if stated and len(stated) == len(values) else None


def _rate(work: float | None, seconds: float | None) -> float | None:
    return work / seconds if work is not None and seconds else None


def _measure_means(steps: Steps, undisturbed: Bool) -> StepMeans:
    waits = steps.data_wait_ns[undisturbed].compressed() / NS_PER_S
    later = steps.is_unstalled & (steps.step > FIRST_STEPS)
    low, high = np.quantile(waits, (0.25, 0.75)).tolist() if len(waits) else (None, None)
    return StepMeans(
        data_wait_s=mean(waits),
        data_wait_low_s=low,
        data_wait_high_s=high,
        garbage_s=_mean_s(steps.garbage_ns, undisturbed),
        garbage_steps=int(present(steps.garbage_ns)[undisturbed].sum()),
        compiled_steps=int(present(steps.compile_ns)[later].sum()),
        compile_s=_mean_s(steps.compile_ns, later),
        compile_in_steps_s=_mean_s(steps.compile_ns, undisturbed),
        alloc_retries=_growth(steps, steps.alloc_retries),
        samples=mean(steps.samples[undisturbed]),
        tokens=mean(steps.tokens[undisturbed]),
    )


def _mean_s(column: MaskedInt64, rows: Bool) -> float | None:
    return in_unit(mean(np.ma.filled(column, 0)[rows]), NS_PER_S)


def _growth(steps: Steps, count: MaskedInt64) -> float | None:
    """How much a count grows in a step, from the first reading after the first steps to the last one."""
    rows = np.flatnonzero(present(count) & (steps.step > FIRST_STEPS))
    if len(rows) < 2:  # noqa: PLR2004 - a first reading and a last one
        return None
    first, last = rows[0], rows[-1]
    return float(count[last] - count[first]) / float(steps.step[last] - steps.step[first])


def _write_notes(
    run: Run, ranks: Sequence[RankSteps], undisturbed: UndisturbedSteps, unreached: Sequence[str]
) -> tuple[str, ...]:
    tables = undisturbed.tables
    source = str(tables[0].source[-1])
    notes = [f"Step boundary: {STEP_BOUNDARIES[source].event if source in STEP_BOUNDARIES else source}."]
    notes += _on_capture(run)
    notes += _on_undisturbed_steps(ranks, undisturbed)
    if undisturbed.effect is not None:
        notes += _on_effect(undisturbed.effect)
    if any(rank.first_s is None for rank in ranks):
        notes.append(
            "First is n/a: no hook saw the first step begin. A DataLoader, a wrapped model (DDP, FSDP) or a step of a "
            "framework would show it."
        )
    unfinished = {table.rank for table in run.steps if len(table) and table.window[-1] in ("warmup", "profiled")}
    lost = sorted(unfinished - {window.rank for window in run.windows if window.partial})
    if lost:
        notes.append(f"Ranks {lost} ended while a window was open: that window is lost, earlier ones are complete.")
    notes += unreached
    saved = {int(step) for table in tables for step in table.step[present(table.save_ns)]}
    if saved:
        notes.append(
            f"Checkpoint saves stalled training in {format_count(len(saved), 'step')}; excluded from the step time, as "
            "are steps in which a rank waited for the save of another one."
        )
    notes += _on_validation(tables)
    counts = {rank.count for rank in ranks}
    if len(counts) > 1:
        notes.append(
            f"Ranks completed different numbers of steps: {min(counts)} to {max(counts)}. Step times are over those "
            "that all have."
        )
    skipped = max(rank.skipped for rank in ranks)
    if skipped:
        notes.append(f"{skipped} steps did not update the weights (loss scale overflow); they are counted as steps.")
    restarted = sorted({table.rank for table in run.steps if table.attempt > 0})
    if restarted:
        notes.append(f"Ranks {restarted} started more than once; the last start is shown.")
    return tuple(notes)


def _on_capture(run: Run) -> list[str]:
    """What the ranks noted as they were captured, each text once, with the ranks where not all of them noted it."""
    ranks_by_note: dict[str, set[int]] = {}
    for rank in run.ranks:
        for text in rank.notes:
            ranks_by_note.setdefault(text, set()).add(rank.rank)
    everybody = {rank.rank for rank in run.ranks}
    return [
        f"{text[0].upper()}{text[1:]}." if ranks == everybody else f"Ranks {sorted(ranks)}: {text}."
        for text, ranks in ranks_by_note.items()
        if text
    ]


def _on_undisturbed_steps(ranks: Sequence[RankSteps], undisturbed: UndisturbedSteps) -> list[str]:
    found, chosen = len(undisturbed.steady), len(undisturbed.numbers)
    if not chosen:
        has_window = any((table.window != "").any() for table in undisturbed.tables)
        fewer = ", or profile fewer of them (`--steps`, `--window light`)" if has_window else ""
        return [
            f"No step time, median, throughput or MFU: {format_count(found, 'steady-state step')}, and these need "
            f"{FEWEST_STEPS}. Start-up, windows, checkpoint saves or validation affected the others. Train for at "
            f"least {format_count(FEWEST_STEPS - found, 'more step')}{fewer}."
        ]
    excluded = max(rank.count for rank in ranks) - chosen
    also = ", and those after the first window" if chosen < found else ""
    if undisturbed.ahead:
        also += f", and {undisturbed.ahead} in which hosts only ran ahead of their devices"
    return [
        f"Step time, median and p95 are over {chosen} steady-state steps; {excluded} steps are excluded: the first "
        "ones, profiled ones, their warm-up, the step after an export, steps with a checkpoint save, a validation or a "
        f"compilation{also}."
    ]


def _on_effect(effect: WindowEffect) -> list[str]:
    """Whether the steps after the first window differ from those before it, and what follows from that."""
    if effect.verdict is Effect.UNTESTED:
        if not effect.after:
            return []
        advice = " Profile later steps, such as `--steps 20-22`." if effect.before < FEWEST_STEPS else ""
        return [f"Whether the window slowed the steps after it was not tested: {effect.reason}.{advice}"]
    if effect.before_s is None or effect.after_s is None or effect.change_low is None or effect.change_high is None:
        return []
    medians = (
        f"median {effect.after_s * MS_PER_S:.2f} ms after the first window and {effect.before_s * MS_PER_S:.2f} ms "
        f"before it ({effect.change or 0:+.1%}, 99 % interval {effect.change_low:+.1%} to {effect.change_high:+.1%})"
    )
    texts = {
        Effect.SLOWER: f"The window slowed the steps after it: {medians}. Step time, throughput, MFU and energy "
        f"are for the {effect.before} steps before the window.",
        Effect.FASTER: f"Steps after the window are faster: {medians}. A window cannot do that: something else "
        "slowed the steps before it, such as start-up; the step time is over both.",
        Effect.DRIFT: f"Step times differ on both sides of the window: {medians}. They drift, or the steps before it "
        "are too few to blame it; the step time is over both.",
    }
    return [texts[effect.verdict]] if effect.verdict in texts else []


def _on_validation(tables: Sequence[Steps]) -> list[str]:
    """How many steps held a validation, which is not in their time."""
    held = max(int(present(table.no_grad_ns).sum()) for table in tables)
    if not held:
        return []
    total_s = max(int(table.no_grad_ns.sum()) for table in tables if table.no_grad_ns.count()) / NS_PER_S
    return [
        f"Validation or generation ran for {total_s:.2f} s in {format_count(held, 'step')}: it is not in the steps' "
        "times, and these steps are not in the step time."
    ]
