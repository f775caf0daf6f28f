"""How long a training step takes and how much it processes, as the host saw it.

The step time is the host's time from one step boundary to the next. The median is over undisturbed steps: the first
step, the profiled ones, their warm-up, the step after an export and the steps in which a checkpoint was saved are given
apart, because each costs more than training does, or, behind a save that waited for the device, less. Throughput is the
work of a median step over its time, summed over data-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.errors import MissingInput
from perfscope.report import Column, Json, Section
from perfscope.tables.run import Rank, Run
from perfscope.tables.steps import FEWEST_STEPS, Steps

#: Which steps of a table, as a mask.
Choose: TypeAlias = Callable[[Steps], np.ndarray]


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The steps of one rank.

    Attributes:
        rank: The rank.
        count: All completed steps.
        skipped: Steps that did not update the weights.
        undisturbed: How many steps the median and the 95th percentile are over.
        median_s, p95_s: Of the undisturbed steps; absent where there is none.
        first_s: The first step, from when training could begin; absent where that was not seen.
        profiled_s: Median of the steps inside windows; absent without a window.
        export_s: Median of the steps after an export, the export itself left out; absent without one.
        data_wait_s: Median wait for the data loader in an undisturbed step; absent where no loader was seen.
        memory_peak_bytes: Peak device memory of tensors; absent without a device.
        samples: Samples of a median undisturbed step on this rank; absent where unknown.
        tokens: Tokens of it; absent where unknown.
        global_samples: Samples over all ranks as the framework states them; absent where it does not.
    """

    rank: int
    count: int
    skipped: int
    undisturbed: int
    median_s: float | None
    p95_s: float | None
    first_s: float | None
    profiled_s: float | None
    export_s: float | None
    data_wait_s: float | None
    memory_peak_bytes: int | None
    samples: float | None
    tokens: float | None
    global_samples: float | None


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The steps of a run.

    Attributes:
        source: What told that a step completed.
        count: Completed training steps: the most that any rank completed.
        median_s, p95_s: Over all ranks' undisturbed steps, the slowest rank of each step.
        first_s: The first step of the slowest rank.
        profiled_s, export_s: Median of profiled steps and of those after an export, the slowest rank of each.
        samples_per_s, tokens_per_s: Over all ranks, from median steps; absent where unknown.
        ranks: Each rank by itself.
        notes: What a reader must know.
    """

    source: str
    count: int
    median_s: float | None
    p95_s: float | None
    first_s: float | None
    profiled_s: float | None
    export_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    ranks: tuple[RankSteps, ...]
    notes: tuple[str, ...]

    def data(self) -> Json:
        """The value of ``results.steps``."""
        return {
            "count": self.count,
            "source": self.source,
            "median_s": self.median_s,
            "p95_s": self.p95_s,
            "first_s": self.first_s,
            "profiled_s": self.profiled_s,
            "export_s": self.export_s,
            "samples_per_s": self.samples_per_s,
            "tokens_per_s": self.tokens_per_s,
            "ranks": [
                {
                    "rank": rank.rank,
                    "count": rank.count,
                    "skipped": rank.skipped,
                    "undisturbed": rank.undisturbed,
                    "median_s": rank.median_s,
                    "p95_s": rank.p95_s,
                    "first_s": rank.first_s,
                    "profiled_s": rank.profiled_s,
                    "export_s": rank.export_s,
                    "data_wait_s": rank.data_wait_s,
                    "memory_peak_bytes": rank.memory_peak_bytes,
                }
                for rank in self.ranks
            ],
            "notes": list(self.notes),
        }

    def sections(self) -> tuple[Section, ...]:
        """A table of ranks under a line for the run."""
        columns = (
            Column("Rank"),
            Column("Steps"),
            Column("Median (ms)", 2),
            Column("p95 (ms)", 2),
            Column("First (ms)", 1),
            Column("Profiled (ms)", 2),
            Column("After export (ms)", 2),
            Column("Data wait (ms)", 2),
            Column("Peak memory (GB)", 2),
        )
        rows = [
            (
                str(rank.rank),
                rank.count,
                _ms(rank.median_s),
                _ms(rank.p95_s),
                _ms(rank.first_s),
                _ms(rank.profiled_s),
                _ms(rank.export_s),
                _ms(rank.data_wait_s),
                None if rank.memory_peak_bytes is None else rank.memory_peak_bytes / 1e9,
            )
            for rank in self.ranks
        ]
        if len(self.ranks) > 1:
            rows.append(
                (
                    "all",
                    self.count,
                    _ms(self.median_s),
                    _ms(self.p95_s),
                    _ms(self.first_s),
                    _ms(self.profiled_s),
                    _ms(self.export_s),
                    None,
                    None,
                )
            )
        return (Section("Steps", columns, tuple(rows), notes=(*self._throughput(), *self.notes)),)

    def _throughput(self) -> tuple[str, ...]:
        rates = [
            f"{rate:,.1f} {unit} a second"
            for rate, unit in ((self.tokens_per_s, "tokens"), (self.samples_per_s, "samples"))
            if rate is not None
        ]
        return (f"Throughput over all ranks: {', '.join(rates)}.",) if rates else ()


def analyze(run: Run) -> StepTimes:
    """Summarise the steps of every rank.

    Raises:
        MissingInput: No rank completed a training step.
    """
    steps = last_attempts(run.steps)
    if not steps:
        raise MissingInput("no rank completed a training step")
    ranks = tuple(_rank(table) for table in steps)
    walls = slowest_rank_of_each_step(steps, undisturbed_steps)
    median_s = _median(walls)
    facts = {fact.rank: fact for fact in run.ranks}
    samples, tokens = _work_of_a_step(ranks, facts)
    return StepTimes(
        source=str(steps[0].source[-1]),
        count=max(rank.count for rank in ranks),
        median_s=median_s,
        p95_s=_p95(walls),
        first_s=max((rank.first_s for rank in ranks if rank.first_s is not None), default=None),
        profiled_s=_median(slowest_rank_of_each_step(steps, profiled_steps)),
        export_s=_median(slowest_rank_of_each_step(steps, _after_export)),
        samples_per_s=_rate(samples, median_s),
        tokens_per_s=_rate(tokens, median_s),
        ranks=ranks,
        notes=_notes(run, ranks, steps),
    )


def last_attempts(tables: Sequence[Steps]) -> list[Steps]:
    """The last process of each rank that completed a step: what an elastic restart repeated is not counted twice."""
    last: dict[int, Steps] = {}
    for table in sorted(tables, key=lambda table: (table.rank, table.attempt)):
        if len(table):
            last[table.rank] = table
    return list(last.values())


def _rank(steps: Steps) -> RankSteps:
    undisturbed = undisturbed_steps(steps)
    walls = steps.wall_ns[undisturbed].compressed() / NS_PER_S
    first = steps.wall_ns[0] if steps.step[0] == 1 else np.ma.masked
    return RankSteps(
        rank=steps.rank,
        count=len(steps),
        skipped=int(steps.skipped.sum()),
        undisturbed=len(walls),
        median_s=_median(walls),
        p95_s=_p95(walls),
        first_s=None if first is np.ma.masked else float(first) / NS_PER_S,
        profiled_s=_median(_seconds(steps, profiled_steps)),
        export_s=_median(_seconds(steps, _after_export)),
        data_wait_s=_scaled(_median(steps.data_wait_ns[undisturbed].compressed()), 1 / NS_PER_S),
        memory_peak_bytes=_largest(steps.memory_peak_bytes),
        samples=_median(_of_undisturbed(steps.samples, undisturbed)),
        tokens=_median(_of_undisturbed(steps.tokens, undisturbed)),
        global_samples=_median(_of_undisturbed(steps.global_samples, undisturbed)),
    )


def undisturbed_steps(steps: Steps) -> np.ndarray:
    """Steps that neither start-up nor a window nor a checkpoint save disturbed."""
    return steps.undisturbed


def profiled_steps(steps: Steps) -> np.ndarray:
    """Steps inside a window."""
    return np.asarray(steps.window == "profiled")


def _after_export(steps: Steps) -> np.ndarray:
    return np.asarray(steps.window == "export")


def _seconds(steps: Steps, choose: Choose) -> np.ndarray:
    return np.asarray(steps.wall_ns[choose(steps)].compressed() / NS_PER_S)


def _of_undisturbed(column: np.ma.MaskedArray, undisturbed: np.ndarray) -> np.ndarray:
    """The work of undisturbed steps; of all steps where every one was disturbed, because windows change no work."""
    chosen = column[undisturbed].compressed()
    return np.asarray(chosen if len(chosen) else column.compressed())


def slowest_rank_of_each_step(tables: Sequence[Steps], choose: Choose) -> np.ndarray:
    """Seconds of each step on its slowest rank."""
    slowest: dict[int, float] = {}
    for table in tables:
        chosen = choose(table)
        for step, wall_ns in zip(table.step[chosen], table.wall_ns[chosen], strict=True):
            if wall_ns is not np.ma.masked:
                slowest[int(step)] = max(slowest.get(int(step), 0.0), float(wall_ns) / NS_PER_S)
    return np.asarray(list(slowest.values()))


def _work_of_a_step(ranks: Sequence[RankSteps], facts: dict[int, Rank]) -> tuple[float | None, float | None]:
    """Samples and tokens of a step over all ranks; what a framework states is preferred to what was counted.

    Model-parallel ranks work on the same samples, so one of each group counts.
    """
    stated = [rank.global_samples for rank in ranks if rank.global_samples is not None]
    representatives = [rank for rank in ranks if _leads_its_replica(facts.get(rank.rank))]
    expected = {fact.world_size for fact in facts.values()}
    complete = bool(facts) and len(ranks) >= max(expected)
    counted = _sum([rank.samples for rank in representatives]) if complete else None
    tokens = _sum([rank.tokens for rank in representatives]) if complete else None
    return (stated[0] if stated else counted), tokens


def _leads_its_replica(fact: Rank | None) -> bool:
    if fact is None:
        return True
    return all(fact.parallel.get(axis, 0) == 0 for axis in ("tp", "pp", "cp"))


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _notes(run: Run, ranks: Sequence[RankSteps], steps: Sequence[Steps]) -> tuple[str, ...]:
    notes = [f"A step ends where {_SOURCES.get(str(steps[0].source[-1]), str(steps[0].source[-1]))}."]
    disturbed = max(rank.count - rank.undisturbed for rank in ranks)
    fewest = min(rank.undisturbed for rank in ranks)
    if fewest == 0:
        notes.append(
            "Start-up, a profiler window or a save disturbed every step, so there is no median: train for longer."
        )
    else:
        notes.append(
            f"Median and p95 are over {fewest} undisturbed steps; the first, the profiled ones, their warm-up and the "
            f"step after an export ({disturbed} in all) are left out."
        )
        if fewest < FEWEST_STEPS:
            notes.append(f"{fewest} undisturbed steps are too few to trust a median: train for longer.")
    notes += _windows(run)
    notes += _saves(steps)
    counts = {rank.count for rank in ranks}
    if len(counts) > 1:
        notes.append(f"Ranks completed different numbers of steps: {min(counts)} to {max(counts)}.")
    skipped = max(rank.skipped for rank in ranks)
    if skipped:
        notes.append(f"{skipped} steps did not update the weights (loss scale overflow); they are counted as steps.")
    restarted = sorted({table.rank for table in run.steps if table.attempt > 0})
    if restarted:
        notes.append(f"Ranks {restarted} started more than once; the last start is shown.")
    return tuple(notes)


def _windows(run: Run) -> list[str]:
    """What each profiler window cost, and the windows that a killed process took with it."""
    notes = []
    for first, last in sorted({(window.first_step, window.last_step) for window in run.windows}):
        windows = [window for window in run.windows if (window.first_step, window.last_step) == (first, last)]
        slowest = max(windows, key=lambda window: window.start_ns + window.stop_ns + window.export_ns)
        cost = [slowest.start_ns, slowest.stop_ns, slowest.export_ns]
        parts = ", ".join(
            f"{ns / 1e6:.0f} ms to {verb}" for ns, verb in zip(cost, ("start", "stop", "export"), strict=True)
        )
        notes.append(
            f"The window {_range(first, last)} held training up for {sum(cost) / 1e6:.0f} ms ({parts}), "
            "in no step's time."
        )
    lost = [table.rank for table in run.steps if len(table) and table.window[-1] in ("warmup", "profiled")]
    lost = sorted(set(lost) - {window.rank for window in run.windows if window.partial})
    if lost:
        notes.append(f"Ranks {lost} ended while a window was open: that window is lost, earlier ones are kept.")
    return notes


def _saves(steps: Sequence[Steps]) -> list[str]:
    """What checkpoint saves did to steps."""
    notes = []
    held = max(int((~np.ma.getmaskarray(table.save_ns)).sum()) for table in steps)
    if held:
        median_ms = _ms(_median(slowest_rank_of_each_step(steps, _saving)))
        without = "" if median_ms is None else f": {median_ms:.2f} ms in the median without the save"
        notes.append(f"Checkpoint saves held training in {held} steps, which are left out{without}.")
    beside = max(int(_beside_a_save(table).sum()) for table in steps)
    if beside:
        median_ms = _ms(_median(slowest_rank_of_each_step(steps, _beside_a_save)))
        time = "" if median_ms is None else f": {median_ms:.2f} ms in the median"
        counted = max(int((undisturbed_steps(table) & table.draining).sum()) for table in steps)
        notes.append(
            f"An asynchronous save was writing beside {beside} other steps{time}; they are "
            f"{'counted, because few others are left' if counted else 'left out'}."
        )
    return notes


def _saving(steps: Steps) -> np.ndarray:
    return ~np.ma.getmaskarray(steps.save_ns)


def _beside_a_save(steps: Steps) -> np.ndarray:
    return np.asarray(steps.draining & np.ma.getmaskarray(steps.save_ns) & (steps.window == "") & (steps.step > 1))


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


_SOURCES = {
    "deepspeed": "DeepSpeed's engine moves global_steps",
    "deepspeed_pipeline": "DeepSpeed's PipelineEngine.train_batch returns",
    "megatron": "Megatron's train_step returns",
    "megatron_optimizer": "the step of Megatron's optimizer returns",
    "rpc_optimizer": "the step of DistributedOptimizer returns",
    "torchtitan": "torchtitan's train_step returns",
    "grad_scaler": "GradScaler.update returns",
    "optimizer": "the optimizer's step returns",
}


def _median(values: np.ndarray) -> float | None:
    return float(np.median(values)) if len(values) else None


def _p95(values: np.ndarray) -> float | None:
    return float(np.percentile(values, 95)) if len(values) else None


def _largest(column: np.ma.MaskedArray) -> int | None:
    known = column.compressed()
    return int(known.max()) if len(known) else None


def _rate(work: float | None, seconds: float | None) -> float | None:
    return work / seconds if work is not None and seconds else None


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _ms(seconds: float | None) -> float | None:
    return _scaled(seconds, 1e3)
