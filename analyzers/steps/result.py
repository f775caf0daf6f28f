"""The step times of a run, as data and as a table."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.shared.window_effect import WindowEffect
from perfscope.analyzers.steps.means import StepMeans
from perfscope.constants import GB
from perfscope.report import Column, Json, Section, in_unit, milliseconds


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The steps of one rank.

    Attributes:
        rank: The rank.
        count: All completed steps.
        skipped: Steps that did not update the weights.
        steady: Number of undisturbed steps, which the three times below are over.
        step_time_s: The sum of these steps over their number; absent where they are too few.
        median_s, p95_s: Of these steps; absent likewise.
        first_s: The first step, from when training could begin; absent where unknown.
        profiled_s: Median of the steps inside windows; absent without a window.
        export_s: Median of the steps after an export, the export itself excluded; absent without one.
        data_wait_s: Median wait for the data loader in a steady-state step; absent where no loader was detected.
        means: What the steps lose beside their work.
        memory_peak_bytes: Peak device memory of tensors; absent without a device.
        micro_batches: Forward passes of a median undisturbed step; absent where unknown.
        samples, tokens: Of a mean undisturbed step on this rank; absent where unknown.
        global_samples: Samples over all ranks as the framework states them; absent where it does not.
    """

    rank: int
    count: int
    skipped: int
    steady: int
    step_time_s: float | None
    median_s: float | None
    p95_s: float | None
    first_s: float | None
    profiled_s: float | None
    export_s: float | None
    data_wait_s: float | None
    means: StepMeans
    memory_peak_bytes: int | None
    micro_batches: float | None
    samples: float | None
    tokens: float | None
    global_samples: float | None

    def data(self) -> dict[str, Json]:
        """The rank for JSON."""
        return {
            "rank": self.rank,
            "count": self.count,
            "skipped": self.skipped,
            "undisturbed": self.steady,
            "step_time_s": self.step_time_s,
            "median_s": self.median_s,
            "p95_s": self.p95_s,
            "first_s": self.first_s,
            "profiled_s": self.profiled_s,
            "export_s": self.export_s,
            "data_wait_s": self.data_wait_s,
            "memory_peak_bytes": self.memory_peak_bytes,
            "means": self.means.data(),
        }


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The steps of a run.

    Attributes:
        source: What detected that a step completed.
        count: Completed training steps: the most that any rank completed.
        step_time_s: The job's step time: the mean of the undisturbed steps, each from its latest begin on a rank to its
            latest end; absent where they are too few.
        median_s, p95_s: Of these steps; absent likewise.
        first_s: The first step of the slowest rank.
        profiled_s, export_s: Median of profiled steps and of those after an export, of the job likewise.
        samples_per_step, tokens_per_step: The work of a step over all ranks; absent where unknown.
        samples_per_s, tokens_per_s: This work over the step time; absent where either is unknown.
        ranks: Each rank by itself.
        undisturbed_ns: The times of the undisturbed steps, of the job in their order.
        effect: The steps before the first window and behind it; absent without a window.
        unreached_windows: Which windows training ended too early for, in words.
        notes: What a reader must know.
        micro_batches: Forward passes of a median step on a rank; absent where unknown.
    """

    source: str
    count: int
    step_time_s: float | None
    median_s: float | None
    p95_s: float | None
    first_s: float | None
    profiled_s: float | None
    export_s: float | None
    samples_per_step: float | None
    tokens_per_step: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    ranks: tuple[RankSteps, ...]
    undisturbed_ns: tuple[int, ...]
    effect: WindowEffect | None
    unreached_windows: tuple[str, ...]
    notes: tuple[str, ...]
    micro_batches: float | None = None

    def data(self) -> Json:
        """The value of ``results.steps``."""
        return {
            "count": self.count,
            "source": self.source,
            "step_time_s": self.step_time_s,
            "median_s": self.median_s,
            "p95_s": self.p95_s,
            "first_s": self.first_s,
            "profiled_s": self.profiled_s,
            "export_s": self.export_s,
            "samples_per_step": self.samples_per_step,
            "tokens_per_step": self.tokens_per_step,
            "samples_per_s": self.samples_per_s,
            "tokens_per_s": self.tokens_per_s,
            "undisturbed_ns": list(self.undisturbed_ns),
            "micro_batches": self.micro_batches,
            "window_effect": None if self.effect is None else self.effect.data(),
            "unreached_windows": list(self.unreached_windows),
            "ranks": [rank.data() for rank in self.ranks],
            "notes": list(self.notes),
        }

    def sections(self) -> tuple[Section, ...]:
        """A row a rank, and one for the run."""
        columns = (
            Column("Rank"),
            Column("Steps"),
            Column("Step time (ms)", 2),
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
                *_times_ms(rank),
                milliseconds(rank.data_wait_s),
                in_unit(rank.memory_peak_bytes, GB),
            )
            for rank in self.ranks
        ]
        notes = [*self._throughput(), *self.notes]
        if len(self.ranks) > 1:
            rows.append(("all", self.count, *_times_ms(self), None, None))
            notes.append(
                "all: each step from its latest begin on a rank to its latest end; first: of the slowest rank."
            )
        return (Section("Steps", columns, tuple(rows), notes=tuple(notes)),)

    def _throughput(self) -> tuple[str, ...]:
        rates = [
            f"{rate:,.1f} {unit}/s"
            for rate, unit in ((self.tokens_per_s, "tokens"), (self.samples_per_s, "samples"))
            if rate is not None
        ]
        return (f"Throughput over all ranks: {', '.join(rates)}.",) if rates else ()


def _times_ms(steps: RankSteps | StepTimes) -> tuple[float | None, ...]:
    """The cells of step times."""
    times_s = (steps.step_time_s, steps.median_s, steps.p95_s, steps.first_s, steps.profiled_s, steps.export_s)
    return tuple(milliseconds(seconds) for seconds in times_s)
