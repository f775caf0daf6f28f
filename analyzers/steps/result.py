"""The step times of a run."""

from __future__ import annotations

from typing import Annotated

from perfscope.analyzers.shared.window_effect import WindowEffect
from perfscope.report import Section
from perfscope.result import GIGABYTES, MS, Column, Doc, Figures, Result, Table


class StepMeans(Figures, frozen=True):
    """Means over the steps of a rank: a wait of every tenth step is in no median."""

    data_wait_s: Annotated[
        float | None,
        Doc("Waiting for data loaders in the undisturbed steps; None where no loader was detected."),
    ]
    data_wait_low_s: Annotated[float | None, Doc("The quarter of them with the shortest waits waits at most so long.")]
    data_wait_high_s: Annotated[float | None, Doc("The quarter of them with the longest waits waits at least so long.")]
    garbage_s: Annotated[float | None, Doc("Full collections of Python's garbage in them.")]
    garbage_steps: Annotated[int, Doc("How many of them such a collection interrupted.")]
    compiled_steps: Annotated[int, Doc("Steps behind the first five in which torch.compile compiled.")]
    compile_s: Annotated[
        float | None,
        Doc("Its time in a step behind the first five, windows, saves and validations left out."),
    ]
    compile_in_steps_s: Annotated[float | None, Doc("Its time in an undisturbed step.")]
    device_allocs: Annotated[
        float | None,
        Doc("Calls of cudaMalloc in a step behind those in which the optimizer allocates its state."),
    ]
    alloc_retries: Annotated[float | None, Doc("Emptied caches of the allocator in such a step.")]
    samples: Annotated[float | None, Doc("Samples that the rank took in in an undisturbed step.")]
    tokens: Annotated[float | None, Doc("Tokens likewise.")]


class RankSteps(Figures, frozen=True):
    """The steps of one rank.

    Attributes:
        micro_batches: Forward passes of a median undisturbed step; absent where unknown.
        samples, tokens: Of a mean undisturbed step on this rank; absent where unknown.
        global_samples: Samples over all ranks as the framework states them; absent where it does not.
    """

    rank: Annotated[int, Doc("The rank.")]
    count: Annotated[int, Doc("All completed steps.")]
    skipped: Annotated[int, Doc("Steps that did not update the weights.")]
    undisturbed: Annotated[
        int,
        Doc(
            "Steps that no start-up, window, checkpoint save, validation or compilation affected; 0 where they "
            "are fewer than five, which give no figure."
        ),
    ]
    step_time_s: Annotated[
        float | None,
        Doc("The sum of the undisturbed steps over their number, on the host's clock."),
    ]
    median_s: Annotated[float | None, Doc("Median of them.")]
    p95_s: Annotated[float | None, Doc("95th percentile of them.")]
    first_s: Annotated[float | None, Doc("The first step, from when training could begin.")]
    profiled_s: Annotated[float | None, Doc("Median of the steps inside windows.")]
    export_s: Annotated[float | None, Doc("Median of the steps after an export, the export itself excluded.")]
    data_wait_s: Annotated[
        float | None,
        Doc("Median wait for the data loader in an undisturbed step; None where no loader was detected."),
    ]
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
    window_effect: Annotated[
        WindowEffect | None,
        Doc("The steps before the first window and behind it; None without a window."),
    ]
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
        notes = [*self._throughput(), *self.notes]
        if len(self.ranks) == 1:
            return (table.section(self.ranks, notes),)
        notes.append("all: each step from its latest begin on a rank to its latest end; first: of the slowest rank.")
        return (table.section(self.ranks, notes, totals=[table.row(self, "all")]),)

    def _throughput(self) -> tuple[str, ...]:
        rates = [
            f"{rate:,.1f} {unit}/s"
            for rate, unit in ((self.tokens_per_s, "tokens"), (self.samples_per_s, "samples"))
            if rate is not None
        ]
        return (f"Throughput over all ranks: {', '.join(rates)}.",) if rates else ()
