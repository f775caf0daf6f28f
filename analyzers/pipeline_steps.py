"""The pipeline bubble of every training step, from the passes that the hooks timed, without a trace.

A pass is timed on the device from the arrival of its inputs to the end of its last kernel. Gaps inside a pass count as
work. T is the longest time of a stage from its first to its last pass. Except in zero-bubble schedules that stage is 0.
The bubble is 1 - passes / (p x T). Idle time beyond schedule and imbalance is transfers and host gaps between passes,
which are not separated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from perfscope.analyzers.pipelines.recognition import RecognisedSchedule, recognise_order
from perfscope.analyzers.shared.step_selection import find_undisturbed
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.report import Column, Json, Section, in_unit, percent
from perfscope.schedules.operations import Op, PassKind
from perfscope.schedules.simulator import Deadlock, Timing, simulate
from perfscope.tables.micro_batches import MicroBatches, of_last_attempts
from perfscope.tables.run import Run
from perfscope.wire import PROFILED


@dataclass(frozen=True, slots=True)
class StageMean:
    """One stage in a mean step, in nanoseconds.

    Attributes:
        ranks: The ranks of the stage, one for each pipeline that ran side by side.
        useful: Time of its passes.
        idle: The rest of the section.
        schedule, imbalance, transfer_and_host: The parts of the idle time; absent where the schedule was not
            recognised.
    """

    ranks: tuple[int, ...]
    useful: int
    idle: int
    schedule: int | None
    imbalance: int | None
    transfer_and_host: int | None


@dataclass(frozen=True, slots=True)
class PipelineSteps:
    """The bubble of a run.

    Attributes:
        section_ns: T, the mean of the steady-state steps.
        profiled_section_ns: The mean of the steps inside profiler windows; absent without a window.
        stages: The mean of each stage.
        theory: Idle share for equal stages; absent where the schedule was not recognised.
        schedule: Its name; absent likewise.
        microbatches: Micro-batches in a step.
        steps: The numbers of the steady-state steps.
        shares: The bubble of each of them.
        notes: What a reader must know.
    """

    section_ns: int
    profiled_section_ns: int | None
    stages: tuple[StageMean, ...]
    theory: Fraction | None
    schedule: str | None
    microbatches: int
    steps: tuple[int, ...]
    shares: tuple[Fraction, ...]
    notes: tuple[str, ...]

    @property
    def fraction_of_total(self) -> Fraction:
        """Idle time over p x T."""
        return Fraction(sum(stage.idle for stage in self.stages), len(self.stages) * self.section_ns)

    def share(self, part: str) -> float | None:
        """One part of the idle time of all stages over p x T."""
        times = [getattr(stage, part) for stage in self.stages]
        return None if None in times else sum(times) / (len(times) * self.section_ns)

    def data(self) -> Json:
        """The value of ``results.pipeline_steps``."""
        return {
            "fraction_of_total": float(self.fraction_of_total),
            "theory_fraction_of_total": None if self.theory is None else float(self.theory),
            "schedule_fraction_of_total": self.share("schedule"),
            "imbalance_fraction_of_total": self.share("imbalance"),
            "transfer_and_host_fraction_of_total": self.share("transfer_and_host"),
            "stages": [self._stage_data(stage, mean) for stage, mean in enumerate(self.stages)],
            "section_us": self.section_ns / NS_PER_US,
            "profiled_section_us": in_unit(self.profiled_section_ns, NS_PER_US),
            "microbatches": self.microbatches,
            "schedule": self.schedule,
            "p": len(self.stages),
            "steps": [
                {"step": step, "fraction_of_total": float(share)}
                for step, share in zip(self.steps, self.shares, strict=True)
            ],
            "notes": list(self.notes),
        }

    def _stage_data(self, stage: int, mean: StageMean) -> dict[str, Json]:
        row: dict[str, Json] = {
            "stage": stage,
            "rank": mean.ranks[0],
            "useful_us": mean.useful / NS_PER_US,
            "idle_us": mean.idle / NS_PER_US,
            "schedule_us": in_unit(mean.schedule, NS_PER_US),
            "imbalance_us": in_unit(mean.imbalance, NS_PER_US),
            "transfer_and_host_us": in_unit(mean.transfer_and_host, NS_PER_US),
        }
        return {**row, "ranks": list(mean.ranks)} if len(mean.ranks) > 1 else row

    def sections(self) -> tuple[Section, ...]:
        """A table of stages."""
        headings = ("Passes (ms)", "Schedule (ms)", "Imbalance (ms)", "Transfer and host gaps (ms)", "Idle (%)")
        columns = (Column("Stage"), Column("Rank"), *(Column(heading, 2) for heading in headings))
        rows = tuple(
            (
                str(stage),
                ", ".join(map(str, mean.ranks)),
                mean.useful / NS_PER_MS,
                in_unit(mean.schedule, NS_PER_MS),
                in_unit(mean.imbalance, NS_PER_MS),
                in_unit(mean.transfer_and_host, NS_PER_MS),
                100 * mean.idle / self.section_ns,
            )
            for stage, mean in enumerate(self.stages)
        )
        return (Section("Pipeline bubble of every step", columns, rows, notes=(*self._headline(), *self.notes)),)

    def _headline(self) -> list[str]:
        bubble, low, high = percent(self.fraction_of_total), percent(min(self.shares)), percent(max(self.shares))
        theory = "" if self.theory is None else f"; {percent(self.theory):.1f} % is due to the schedule alone"
        return [
            f"{bubble:.1f} % of p x T is bubble ({low:.1f} to {high:.1f} % in {len(self.steps)} steady-state "
            f"steps){theory}.",
            f"Schedule: {self.schedule or 'not recognised'}, {len(self.stages)} stages, {self.microbatches} "
            f"micro-batches. T is {self.section_ns / NS_PER_MS:.2f} ms{self._profiled_section()}.",
            "Measured by the hooks: gaps inside a pass count as work; transfers and host gaps are not separated.",
        ]

    def _profiled_section(self) -> str:
        if self.profiled_section_ns is None:
            return ""
        slowdown = percent(self.profiled_section_ns / self.section_ns - 1)
        return f", and {self.profiled_section_ns / NS_PER_MS:.2f} ms in profiled steps ({slowdown:+.1f} %)"


@dataclass(frozen=True, slots=True)
class _TimedPipeline:
    """The timed steps of every rank, and the ranks of each stage.

    Attributes:
        by_rank: The steps of each rank's last process, by number.
        stages: The ranks of each stage, one for each pipeline that ran side by side.
    """

    by_rank: Mapping[int, Mapping[int, MicroBatches]]
    stages: tuple[tuple[int, ...], ...]

    def section(self, step: int) -> int:
        """T of one step: the longest span of a stage, a mean over the pipelines that ran side by side."""
        return max(_mean([self.by_rank[rank][step].span_ns for rank in ranks]) for ranks in self.stages)

    def busy(self, ranks: tuple[int, ...], steps: Sequence[int]) -> int:
        """Mean time of the passes of a stage."""
        return _mean([self.by_rank[rank][step].busy_ns for rank in ranks for step in steps])

    def share(self, step: int) -> Fraction:
        """The bubble of one step."""
        busy = sum(self.busy(ranks, [step]) for ranks in self.stages)
        return 1 - Fraction(busy, len(self.stages) * self.section(step))


def analyze(run: Run) -> PipelineSteps:
    """Average the steady-state steps of every stage.

    Raises:
        MissingInput: The run has no pipeline, a stage timed nothing, or no step was timed on every stage.
    """
    by_rank = of_last_attempts(run.micro_batches)
    if not by_rank:
        raise MissingInput("no pipeline: no rank timed micro-batches")
    ranks_of: dict[int, list[int]] = defaultdict(list)
    for rank, records in by_rank.items():
        ranks_of[next(iter(records.values())).device].append(rank)
    devices = next(iter(next(iter(by_rank.values())).values())).devices
    missing = sorted(set(range(devices)) - set(ranks_of))
    if missing:
        raise MissingInput(f"stages {', '.join(map(str, missing))} of the pipeline timed no micro-batches")
    common = sorted(set.intersection(*(set(records) for records in by_rank.values())))
    windows = _profiler_windows(run)
    undisturbed = set(find_undisturbed(run.steps).numbers.tolist())
    steady = [step for step in common if step in undisturbed] or [
        step for step in common if step > 1 and not windows.get(step)
    ]
    steady = steady or common
    if not steady:
        raise MissingInput("no step was timed on every stage")
    pipeline = _TimedPipeline(by_rank, tuple(tuple(ranks_of[device]) for device in range(devices)))
    return _average(pipeline, steady, [step for step in common if windows.get(step) == PROFILED])


def _profiler_windows(run: Run) -> dict[int, str]:
    """How a profiler disturbed each step, on any rank."""
    return {
        int(step): str(window)
        for table in run.steps
        for step, window in zip(table.step, table.window, strict=True)
        if window
    }


def _average(pipeline: _TimedPipeline, steady: Sequence[int], profiled: Sequence[int]) -> PipelineSteps:
    section = _mean([pipeline.section(step) for step in steady])
    recognised, simulation = _simulate(pipeline, steady)
    stages = []
    for device, ranks in enumerate(pipeline.stages):
        busy = pipeline.busy(ranks, steady)
        schedule = simulation.schedule[device] if simulation else None
        stages.append(
            StageMean(
                ranks=ranks,
                useful=busy,
                idle=section - busy,
                schedule=schedule,
                imbalance=simulation.section - busy - schedule if simulation and schedule is not None else None,
                transfer_and_host=section - simulation.section if simulation else None,
            )
        )
    last_step = pipeline.by_rank[pipeline.stages[0][0]][steady[-1]]
    forwards = sum(total.count for total in last_step.totals if total.kind == PassKind.FORWARD)
    return PipelineSteps(
        section_ns=section,
        profiled_section_ns=_mean([pipeline.section(step) for step in profiled]) if profiled else None,
        stages=tuple(stages),
        theory=simulation.theory if simulation else None,
        schedule=recognised.name if recognised else None,
        microbatches=recognised.plan.microbatches if recognised else forwards,
        steps=tuple(steady),
        shares=tuple(pipeline.share(step) for step in steady),
        notes=(),
    )


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values))


@dataclass(frozen=True, slots=True)
class _MeanTiming(Timing):
    """The mean time of each kind of pass on each virtual stage."""

    work: dict[tuple[PassKind, int], int]

    def time_of(self, op: Op) -> int:
        return self.work[op.kind, op.stage]


@dataclass(frozen=True, slots=True)
class _Simulation:
    """The recognised schedule, simulated with mean times.

    Attributes:
        theory: Idle share for equal stages.
        schedule: Each stage's idle time for equal stages.
        section: T for the stages with their own times.
    """

    theory: Fraction
    schedule: tuple[int, ...]
    section: int


def _simulate(
    pipeline: _TimedPipeline, steady: Sequence[int]
) -> tuple[RecognisedSchedule, _Simulation] | tuple[None, None]:
    recognised = recognise_order([pipeline.by_rank[ranks[0]][steady[-1]].order for ranks in pipeline.stages])
    if recognised is None:
        return None, None
    mean_times = _average_passes(pipeline, steady)
    kinds = {kind for kind, _ in mean_times}
    equal = {kind: _mean([time for (of_kind, _), time in mean_times.items() if of_kind is kind]) for kind in kinds}
    try:
        ideal = simulate(recognised.plan, _MeanTiming({(kind, stage): equal[kind] for kind, stage in mean_times}))
        section = simulate(recognised.plan, _MeanTiming(mean_times)).section
    except (Deadlock, KeyError):
        return None, None
    schedule = tuple(ideal.section - ideal.busy(device) for device in range(len(pipeline.stages)))
    return recognised, _Simulation(ideal.fraction_of_total, schedule, section)


def _average_passes(pipeline: _TimedPipeline, steady: Sequence[int]) -> dict[tuple[PassKind, int], int]:
    """The mean time of each kind of pass on each virtual stage."""
    counts: Counter[tuple[PassKind, int]] = Counter()
    times: Counter[tuple[PassKind, int]] = Counter()
    for records in pipeline.by_rank.values():
        for total in (total for step in steady for total in records[step].totals):
            counts[PassKind(total.kind), total.stage] += total.count
            times[PassKind(total.kind), total.stage] += total.time_ns
    return {key: round(times[key] / counts[key]) for key in counts}
