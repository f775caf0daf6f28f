"""The pipeline bubble of every training step, from the micro-batches that the hooks timed: no trace is needed.

A pass is timed on the device from when its inputs have arrived to when its last kernel has run, so gaps inside a pass
count as work here, and T is the longest time of one stage from its first to its last pass; for all but zero-bubble
schedules that is stage 0. The bubble is 1 - passes / (p x T). What schedule and imbalance leave is transfers and host
gaps between passes together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from perfscope.analyzers.pipelines.recognition import Recognised, of_order
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.report import Column, Json, Section
from perfscope.schedules.orders import Kind, Op
from perfscope.schedules.simulator import Deadlock, simulate
from perfscope.tables.micro_batches import MicroBatches
from perfscope.tables.run import Run


@dataclass(frozen=True, slots=True)
class StageMean:
    """One stage in a mean step, in nanoseconds; what the schedule tells is absent where it was not recognised."""

    ranks: tuple[int, ...]
    useful: int
    idle: int
    schedule: int | None
    imbalance: int | None
    rest: int | None


@dataclass(frozen=True, slots=True)
class PipelineSteps:
    """The bubble of a run.

    Attributes:
        section_ns: T, the mean of the undisturbed steps.
        profiled_section_ns: The mean of the steps inside profiler windows; absent without a window.
        stages: Each stage.
        theory: Idle share for equal stages; absent where the schedule was not recognised.
        schedule: Its name; absent likewise.
        microbatches: How many in a step.
        steps: The numbers of the steps that the means are over.
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

    def share(self, name: str) -> float | None:
        """One part of all stages over p x T."""
        parts = [getattr(stage, name) for stage in self.stages]
        return None if None in parts else sum(parts) / (len(parts) * self.section_ns)

    def data(self) -> Json:
        """The value of ``results.pipeline_steps``."""
        return {
            "fraction_of_total": float(self.fraction_of_total),
            "theory_fraction_of_total": None if self.theory is None else float(self.theory),
            "schedule_fraction_of_total": self.share("schedule"),
            "imbalance_fraction_of_total": self.share("imbalance"),
            "transfer_and_host_fraction_of_total": self.share("rest"),
            "stages": [self._stage_data(stage, mean) for stage, mean in enumerate(self.stages)],
            "section_us": self.section_ns / NS_PER_US,
            "profiled_section_us": _us(self.profiled_section_ns),
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
            "schedule_us": _us(mean.schedule),
            "imbalance_us": _us(mean.imbalance),
            "transfer_and_host_us": _us(mean.rest),
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
                _ms(mean.schedule),
                _ms(mean.imbalance),
                _ms(mean.rest),
                100 * mean.idle / self.section_ns,
            )
            for stage, mean in enumerate(self.stages)
        )
        return (Section("Pipeline bubble of every step", columns, rows, notes=(*self._headline(), *self.notes)),)

    def _headline(self) -> list[str]:
        share, low, high = (
            float(100 * value) for value in (self.fraction_of_total, min(self.shares), max(self.shares))
        )
        theory = "" if self.theory is None else f"; the schedule alone would leave {float(100 * self.theory):.1f} %"
        return [
            f"{share:.1f} % of p x T is bubble ({low:.1f} to {high:.1f} % in {len(self.steps)} undisturbed "
            f"steps){theory}.",
            f"Schedule: {self.schedule or 'not recognised'}, {len(self.stages)} stages, {self.microbatches} "
            f"micro-batches. T is {self.section_ns / NS_PER_MS:.2f} ms{self._profiled()}.",
            "From the hooks' own times: gaps inside a pass count as work, and transfers are not told from host gaps.",
        ]

    def _profiled(self) -> str:
        if self.profiled_section_ns is None:
            return ""
        slower = 100 * (self.profiled_section_ns / self.section_ns - 1)
        return f", and {self.profiled_section_ns / NS_PER_MS:.2f} ms in profiled steps ({slower:+.1f} %)"


def analyze(run: Run) -> PipelineSteps:
    """Average the undisturbed steps of every stage.

    Raises:
        MissingInput: The run has no pipeline, a stage told nothing, or no step is whole.
    """
    by_rank = _last_attempts(run.micro_batches)
    if not by_rank:
        raise MissingInput("no pipeline: no rank timed micro-batches")
    places: dict[int, list[int]] = defaultdict(list)
    for rank, steps in by_rank.items():
        places[next(iter(steps.values())).device].append(rank)
    devices = next(iter(next(iter(by_rank.values())).values())).devices
    missing = sorted(set(range(devices)) - set(places))
    if missing:
        raise MissingInput(f"stages {', '.join(map(str, missing))} of the pipeline timed no micro-batches")
    whole = sorted(set.intersection(*(set(steps) for steps in by_rank.values())))
    windows = _windows(run)
    kept = [step for step in whole if step > 1 and not windows.get(step)] or whole
    if not kept:
        raise MissingInput("no step was timed on every stage")
    profiled = [step for step in whole if windows.get(step) == "profiled"]
    return _result(by_rank, [tuple(places[device]) for device in range(devices)], kept, profiled)


def _last_attempts(records: Sequence[MicroBatches]) -> dict[int, dict[int, MicroBatches]]:
    """The steps of each rank's last process by number."""
    attempts: dict[int, int] = {}
    for one in records:
        attempts[one.rank] = max(attempts.get(one.rank, 0), one.attempt)
    found: dict[int, dict[int, MicroBatches]] = defaultdict(dict)
    for one in records:
        if one.attempt == attempts[one.rank]:
            found[one.rank][one.step] = one
    return dict(sorted(found.items()))


def _windows(run: Run) -> dict[int, str]:
    """How a profiler disturbed each step, on any rank."""
    return {
        int(step): str(window)
        for table in run.steps
        for step, window in zip(table.step, table.window, strict=True)
        if window
    }


def _result(
    by_rank: Mapping[int, Mapping[int, MicroBatches]],
    places: Sequence[tuple[int, ...]],
    kept: Sequence[int],
    profiled: Sequence[int],
) -> PipelineSteps:
    sections = [_section(by_rank, places, step) for step in kept]
    section = round(sum(sections) / len(sections))
    useful = [_mean([by_rank[rank][step].busy_ns for rank in ranks for step in kept]) for ranks in places]
    found, theory, schedule, as_they_are = _simulated(by_rank, places, kept)
    stages = tuple(
        StageMean(
            ranks=ranks,
            useful=busy,
            idle=section - busy,
            schedule=None if schedule is None else schedule[device],
            imbalance=None if schedule is None else as_they_are - busy - schedule[device],
            rest=None if schedule is None else section - as_they_are,
        )
        for device, (ranks, busy) in enumerate(zip(places, useful, strict=True))
    )
    shares = tuple(_share(by_rank, places, step) for step in kept)
    forwards = sum(total.count for total in by_rank[places[0][0]][kept[-1]].totals if total.kind == Kind.FORWARD)
    return PipelineSteps(
        section_ns=section,
        profiled_section_ns=_mean([_section(by_rank, places, step) for step in profiled]) if profiled else None,
        stages=stages,
        theory=theory,
        schedule=found.name if found else None,
        microbatches=found.plan.microbatches if found else forwards,
        steps=tuple(kept),
        shares=shares,
        notes=(),
    )


def _section(by_rank: Mapping[int, Mapping[int, MicroBatches]], places: Sequence[tuple[int, ...]], step: int) -> int:
    """T of one step: the longest span of a stage, a mean over the pipelines that ran side by side."""
    return max(_mean([by_rank[rank][step].span_ns for rank in ranks]) for ranks in places)


def _share(by_rank: Mapping[int, Mapping[int, MicroBatches]], places: Sequence[tuple[int, ...]], step: int) -> Fraction:
    busy = sum(_mean([by_rank[rank][step].busy_ns for rank in ranks]) for ranks in places)
    return 1 - Fraction(busy, len(places) * _section(by_rank, places, step))


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values))


@dataclass(frozen=True, slots=True)
class _MeanTimes:
    """Each kind of pass on each virtual stage takes its mean: a Timing of the simulator."""

    work: dict[tuple[Kind, int], int]

    def of(self, op: Op) -> int:
        return self.work[op.kind, op.stage]

    def transfer_of(self, op: Op, sender: int) -> int:  # noqa: ARG002 - a part of Timing
        return 0

    def held_by(self, op: Op) -> int:  # noqa: ARG002 - a part of Timing
        return 0


def _simulated(
    by_rank: Mapping[int, Mapping[int, MicroBatches]], places: Sequence[tuple[int, ...]], kept: Sequence[int]
) -> tuple[Recognised | None, Fraction | None, list[int] | None, int]:
    """The schedule, the theory, each stage's idle time with equal stages, and the section of the stages as they are."""
    found = of_order([by_rank[ranks[0]][kept[-1]].order for ranks in places])
    if found is None:
        return None, None, None, 0
    times: dict[tuple[Kind, int], list[int]] = defaultdict(lambda: [0, 0])
    for steps in by_rank.values():
        for total in (total for step in kept for total in steps[step].totals):
            time = times[Kind(total.kind), total.stage]
            time[0] += total.count
            time[1] += total.time_ns
    own = {key: round(time / count) for key, (count, time) in times.items()}
    kinds = {kind for kind, _ in own}
    equal = {kind: _mean([time for (other, _), time in own.items() if other is kind]) for kind in kinds}
    try:
        ideal = simulate(found.plan, _MeanTimes({(kind, stage): equal[kind] for kind, stage in own}))
        as_they_are = simulate(found.plan, _MeanTimes(own)).section
    except (Deadlock, KeyError):
        return None, None, None, 0
    schedule = [ideal.section - ideal.busy(device) for device in range(len(places))]
    return found, ideal.fraction_of_total, schedule, as_they_are


def _us(value: int | None) -> float | None:
    return None if value is None else value / NS_PER_US


def _ms(value: int | None) -> float | None:
    return None if value is None else value / NS_PER_MS
