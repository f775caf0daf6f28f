"""The pipeline bubble of every training step, from the passes that the hooks timed, without a trace.

A pass is timed on the device from the arrival of its inputs to the end of its last kernel. Gaps inside a pass count as
work. T is the longest time of a stage from its first to its last pass. Except in zero-bubble schedules that stage is 0.
The bubble is 1 - passes / (p x T). Idle time beyond schedule and imbalance is transfers and host gaps between passes,
which are not separated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, NamedTuple

from perfscope.analyzers.pipeline_bubble.decomposition import MeasuredTiming, StageShares
from perfscope.analyzers.pipeline_bubble.recognition import RecognisedSchedule, recognise_order
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.measures.step_selection import find_undisturbed
from perfscope.report import Section, percent
from perfscope.result import MS_OF_NS, PERCENT, Column, Doc, Figures, InUnit, InUnitIfKnown, Table, figure
from perfscope.schedules.operations import PassKind
from perfscope.schedules.simulator import Deadlock, simulate
from perfscope.tables.micro_batches import MicroBatches, of_last_attempts
from perfscope.tables.run import Run
from perfscope.wire import PROFILED


class TimedStage(Figures, frozen=True):
    """One stage in a mean step, by the passes that hooks timed; private fields are nanoseconds."""

    stage: Annotated[int, Doc("Its number.")]
    ranks: Annotated[tuple[int, ...], Doc("Its ranks: one for each pipeline that ran side by side.")]
    useful: int
    section: int
    schedule: int | None
    imbalance: int | None
    transfer_and_host: int | None
    useful_us = InUnit("useful", NS_PER_US, "Time of its passes.")
    idle_us = InUnit("idle", NS_PER_US, "The rest of the section.")
    schedule_us = InUnitIfKnown("schedule", NS_PER_US, "Idle time of the schedule alone; None where it has no name.")
    imbalance_us = InUnitIfKnown("imbalance", NS_PER_US, "Idle time because stages are unequal, likewise.")
    transfer_and_host_us = InUnitIfKnown(
        "transfer_and_host", NS_PER_US, "Transfers and host gaps between passes, likewise."
    )

    @figure
    def rank(self) -> int:
        """The first of its ranks."""
        return self.ranks[0]

    @property
    def idle(self) -> int:
        """The rest of the section."""
        return self.section - self.useful


class TimedStep(Figures, frozen=True):
    """One step."""

    step: Annotated[int, Doc("Its number.")]
    fraction_of_total: Annotated[float, Doc("Its bubble.")]


class PipelineSteps(StageShares, frozen=True):
    """``results.pipeline_steps``: the bubble of every training step, without a trace; T is a mean of steady steps."""

    stages: Annotated[tuple[TimedStage, ...], Doc("Each stage in a mean step.")]
    section: int
    profiled_section_ns: int | None
    theory_fraction_of_total: Annotated[
        float | None, Doc("Idle time over p x T for equal stages; None where the schedule was not recognised.")
    ]
    schedule: Annotated[str | None, Doc("Its name; None where it was not recognised.")]
    microbatches: Annotated[int, Doc("Micro-batches in a step.")]
    steps: Annotated[tuple[TimedStep, ...], Doc("Each steady-state step.")]
    section_us = InUnit("section", NS_PER_US, "T, the mean of the steady-state steps.")
    profiled_section_us = InUnitIfKnown(
        "profiled_section_ns", NS_PER_US, "T of the steps inside windows; None without a window."
    )

    TABLES = (
        Table(
            "Pipeline bubble of every step",
            "stages",
            (
                Column("Stage", lambda row: str(row.stage)),
                Column("Rank", lambda row: ", ".join(map(str, row.ranks))),
                Column("Passes (ms)", "useful", MS_OF_NS, 2),
                Column("Schedule (ms)", "schedule", MS_OF_NS, 2),
                Column("Imbalance (ms)", "imbalance", MS_OF_NS, 2),
                Column("Transfer and host gaps (ms)", "transfer_and_host", MS_OF_NS, 2),
                Column("Idle (%)", lambda row: PERCENT(row.idle / row.section), None, 2),
            ),
        ),
    )

    @figure
    def fraction_of_total(self) -> float:
        """Idle time over p x T."""
        return sum(stage.idle for stage in self.stages) / (self.p * self.section)

    @figure
    def transfer_and_host_fraction_of_total(self) -> float | None:
        """The part of transfers and host gaps."""
        return self.share_of("transfer_and_host")

    def sections(self) -> tuple[Section, ...]:
        """A table of stages."""
        return (self.TABLES[0].section(self.stages, self._headline()),)

    def _headline(self) -> Iterator[str]:
        shares = [PERCENT(step.fraction_of_total) for step in self.steps]
        theory = percent(self.theory_fraction_of_total)
        of_theory = "" if theory is None else f"; {theory:.1f} % is due to the schedule alone"
        yield (
            f"{PERCENT(self.fraction_of_total):.1f} % of p x T is bubble ({min(shares):.1f} to {max(shares):.1f} % in "
            f"{len(shares)} steady-state steps){of_theory}."
        )
        profiled = ""
        if self.profiled_section_ns is not None:
            slowdown = PERCENT(self.profiled_section_ns / self.section - 1)
            profiled = f", and {self.profiled_section_ns / NS_PER_MS:.2f} ms in profiled steps ({slowdown:+.1f} %)"
        yield (
            f"Schedule: {self.schedule or 'not recognised'}, {self.p} stages, {self.microbatches} micro-batches. T is "
            f"{self.section / NS_PER_MS:.2f} ms{profiled}."
        )
        yield "Measured by the hooks: gaps inside a pass count as work; transfers and host gaps are not separated."


class _TimedPipeline(NamedTuple):
    """The timed steps of every rank's last process by number, and the ranks of each stage."""

    by_rank: Mapping[int, Mapping[int, MicroBatches]]
    stages: tuple[tuple[int, ...], ...]

    def section(self, step: int) -> int:
        return max(_mean([self.by_rank[rank][step].span_ns for rank in ranks]) for ranks in self.stages)

    def busy(self, ranks: tuple[int, ...], steps: Sequence[int]) -> int:
        return _mean([self.by_rank[rank][step].busy_ns for rank in ranks for step in steps])

    def share(self, step: int) -> float:
        busy = sum(self.busy(ranks, [step]) for ranks in self.stages)
        return float(1 - Fraction(busy, len(self.stages) * self.section(step)))


def analyze(run: Run) -> PipelineSteps:
    """Average the steady-state steps of every stage; MissingInput where no step was timed on every one."""
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
    windows = {
        int(step): str(window)
        for table in run.steps
        for step, window in zip(table.step, table.window, strict=True)
        if window
    }
    undisturbed = set(find_undisturbed(run.steps).numbers.tolist())
    steady = [step for step in common if step in undisturbed]
    steady = steady or [step for step in common if step > 1 and not windows.get(step)] or common
    if not steady:
        raise MissingInput("no step was timed on every stage")
    pipeline = _TimedPipeline(by_rank, tuple(tuple(ranks_of[device]) for device in range(devices)))
    return _average(pipeline, steady, [step for step in common if windows.get(step) == PROFILED])


def _average(pipeline: _TimedPipeline, steady: Sequence[int], profiled: Sequence[int]) -> PipelineSteps:
    section = _mean([pipeline.section(step) for step in steady])
    recognised = recognise_order([pipeline.by_rank[ranks[0]][steady[-1]].order for ranks in pipeline.stages])
    simulation = _simulate(pipeline, steady, recognised) if recognised else None
    stages = []
    for device, ranks in enumerate(pipeline.stages):
        busy = pipeline.busy(ranks, steady)
        schedule = simulation.schedule[device] if simulation else None
        imbalance = simulation.section - busy - simulation.schedule[device] if simulation else None
        rest = section - simulation.section if simulation else None
        stages.append(TimedStage(device, ranks, busy, section, schedule, imbalance, rest))
    totals = pipeline.by_rank[pipeline.stages[0][0]][steady[-1]].totals
    forwards = sum(total.count for total in totals if total.kind == PassKind.FORWARD)
    return PipelineSteps(
        section=section,
        profiled_section_ns=_mean([pipeline.section(step) for step in profiled]) if profiled else None,
        stages=tuple(stages),
        theory_fraction_of_total=float(simulation.theory) if simulation else None,
        schedule=recognised.name if recognised and simulation else None,
        microbatches=recognised.plan.microbatches if recognised and simulation else forwards,
        steps=tuple(TimedStep(step, pipeline.share(step)) for step in steady),
    )


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values))


class _Simulation(NamedTuple):
    """A schedule with mean times: the idle share and each stage's idle time for equal stages; T with its own times."""

    theory: Fraction
    schedule: tuple[int, ...]
    section: int


def _simulate(pipeline: _TimedPipeline, steady: Sequence[int], recognised: RecognisedSchedule) -> _Simulation | None:
    counts: Counter[tuple[PassKind, int]] = Counter()
    times: Counter[tuple[PassKind, int]] = Counter()
    for records in pipeline.by_rank.values():
        for total in (total for step in steady for total in records[step].totals):
            counts[PassKind(total.kind), total.stage] += total.count
            times[PassKind(total.kind), total.stage] += total.time_ns
    own = {key: round(times[key] / counts[key]) for key in counts}
    equal = {key: _mean([time for (kind, _), time in own.items() if kind is key[0]]) for key in own}
    ops = [op for order in recognised.plan.orders for block in order for op in block]
    try:
        ideal, measured = (
            simulate(recognised.plan, MeasuredTiming({op: times_ns[op.kind, op.stage] for op in ops}))
            for times_ns in (equal, own)
        )
    except (Deadlock, KeyError):
        return None
    schedule = tuple(ideal.section - ideal.busy(device) for device in range(len(pipeline.stages)))
    return _Simulation(ideal.fraction_of_total, schedule, measured.section)
