"""Measures pipelines: every complete step, decomposed, of every pipeline that ran side by side.

A step is complete where every stage ran it with as many forward as backward passes. A stage's figures are means over
the complete steps and over the pipelines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from statistics import median_low
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec.structs import asdict

from perfscope.analyzers.pipeline_bubble.decomposition import (
    StageParts,
    StepParts,
    Time,
    compare_with_theory,
    decompose,
    sum_idle_time,
)
from perfscope.analyzers.pipeline_bubble.layout import Pipeline, find_pipelines
from perfscope.analyzers.pipeline_bubble.rank_passes import CollectiveRun, MeasuredPass, RankPasses, RankStep
from perfscope.analyzers.pipeline_bubble.recognition import (
    CUSTOM,
    CUSTOM_ZERO_BUBBLE,
    DUALPIPEV,
    RecognisedSchedule,
    recognise_passes,
)
from perfscope.analyzers.shared.clock_offsets import Offset, find_offset, is_apart
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.report import Cell, Row, Section, percent
from perfscope.result import PERCENT, Column, Doc, Figures, InUnitIfKnown, Result, Table, figure
from perfscope.schedules.catalog import Schedule
from perfscope.schedules.drawing import Bar, GanttChart, Lane, draw_timeline, to_text
from perfscope.schedules.operations import Block, PassKind
from perfscope.schedules.prediction import PassTimes, Setup
from perfscope.schedules.simulator import Deadlock

_DRAWING_COLUMNS = 100


class BubbleStep(Figures, frozen=True):
    """One measured step of one pipeline.

    Attributes:
        schedule: The schedule it followed; CUSTOM or CUSTOM_ZERO_BUBBLE for a marked order that is not in the catalog;
            absent where it was not recognised.
        chunks: Virtual stages on a device; absent likewise.
        microbatches: Micro-batches in the step; forward passes of a stage where the schedule was not recognised.
        parts: The decomposition of the section.
        measured, ideal: Charts of the step and of its schedule with equal stages.
    """

    step: Annotated[str, Doc("The profiler's name of the step.")]
    schedule: str | None
    chunks: int | None
    microbatches: int
    parts: StepParts
    measured: GanttChart
    ideal: GanttChart | None
    section_us = InUnitIfKnown(
        "section", NS_PER_US, "T: from the first forward pass of stage 0 to the end of the last backward pass."
    )

    @property
    def section(self) -> int | None:
        """T in nanoseconds; absent without a trace of stage 0."""
        return self.parts.section_ns

    @property
    def shape(self) -> tuple[str | None, int | None, int]:
        """What steps must have in common to be averaged."""
        return self.schedule, self.chunks, self.microbatches

    @property
    def idle(self) -> list[Fraction]:
        """The idle time of each stage that has a trace, where the section is known."""
        return [Fraction(stage.idle) for stage in self.parts.stages if stage.idle is not None]

    @figure
    def fraction_of_total(self) -> float | None:
        """Idle time over p x T."""
        return float(sum(self.idle) / (self.section * len(self.idle))) if self.idle and self.section else None

    @figure
    def theory_fraction_of_total(self) -> float | None:
        """The same for equal stages, without transfers and host gaps."""
        return None if self.parts.theory is None else float(self.parts.theory)

    @figure
    def stages(self) -> tuple[StageParts, ...]:
        """Each stage."""
        return self.parts.stages


class StageMean(StageParts, frozen=True, kw_only=True):
    """One stage in a mean step: ``useful + schedule + imbalance + transfer + host`` is the section.

    Attributes:
        section: T, the mean over steps.
        microbatches: Micro-batches of a step.
    """

    ranks: Annotated[tuple[int, ...], Doc("Its ranks: one for each pipeline that ran side by side.")]
    section: Fraction | None
    microbatches: int
    forward_us = InUnitIfKnown("forward", NS_PER_US, "Time of the forward pass of a micro-batch.", per="microbatches")
    backward_us = InUnitIfKnown(
        "backward",
        NS_PER_US,
        "Time of the backward pass of a micro-batch, the weight gradient included.",
        per="microbatches",
    )

    @figure
    def rank(self) -> int | None:
        """The first of its ranks."""
        return next(iter(self.ranks), None)

    @property
    def backward(self) -> Time:
        """Time of all backward passes of a step."""
        return None if self.useful is None or self.forward is None else self.useful - self.forward

    @property
    def idle_share(self) -> float | None:
        """Idle time over T."""
        return None if self.idle is None or not self.section else float(self.idle / self.section)


def _ms(time: Fraction) -> float:
    return float(time / NS_PER_MS)


class PipelineBubble(Result, frozen=True):
    """``results.pipeline_bubble``: the bubble of a pipeline, from traces."""

    stages: Annotated[tuple[StageMean, ...], Doc("Each stage in a mean step.")]
    steps: Annotated[tuple[BubbleStep, ...], Doc("Each complete step of the usual shape, of all pipelines.")]
    notes: Annotated[tuple[str, ...], Doc("What a reader must know.")]
    section_us = InUnitIfKnown("section", NS_PER_US, "T, the mean over steps.")

    TABLES = (
        Table(
            "Pipeline bubble",
            "stages",
            (
                Column("Stage", lambda row: str(row.stage)),
                Column("Rank", lambda row: ", ".join(map(str, row.ranks))),
                Column("Useful (ms)", "useful", _ms, 2),
                Column("Schedule (ms)", "schedule", _ms, 2),
                Column("Imbalance (ms)", "imbalance", _ms, 2),
                Column("Transfer (ms)", "transfer", _ms, 2),
                Column("Host gaps (ms)", "host", _ms, 2),
                Column("Idle (%)", "idle_share", PERCENT, 2),
            ),
        ),
    )

    @property
    def section(self) -> Fraction | None:
        """T in nanoseconds, the mean over steps."""
        return self.stages[0].section

    @figure
    def fraction_of_total(self) -> float | None:
        """Idle time over p x T; over the stages that have a trace where some have none."""
        total = sum((step.section or 0) * len(step.idle) for step in self.steps)
        return float(sum(sum(step.idle) for step in self.steps) / total) if total else None

    @figure
    def theory_fraction_of_total(self) -> float | None:
        """The same for equal stages, without transfers and host gaps."""
        shares = [step.parts.theory for step in self.steps if step.parts.theory is not None]
        return float(sum(shares) / len(shares)) if shares else None

    @figure
    def schedule_fraction_of_total(self) -> float | None:
        """The part of the schedule."""
        return self._share("schedule")

    @figure
    def imbalance_fraction_of_total(self) -> float | None:
        """The part of unequal stages."""
        return self._share("imbalance")

    @figure
    def transfer_fraction_of_total(self) -> float | None:
        """The part of transfers, with what they took longer than their shorter kernels say."""
        return self._share("transfer")

    @figure
    def host_fraction_of_total(self) -> float | None:
        """The part of gaps in which a device ran nothing."""
        return self._share("host")

    def _share(self, part: str) -> float | None:
        total = self.sum_of(part)
        return float(total / (self.p * self.section)) if total is not None and self.section else None

    def sum_of(self, part: str) -> Fraction | None:
        """A part of all stages; absent where that of one is."""
        times = [getattr(stage, part) for stage in self.stages]
        return None if None in times else Fraction(sum(times))

    @figure
    def microbatches(self) -> int:
        """Micro-batches in a step."""
        return self.steps[0].microbatches

    @figure
    def schedule(self) -> str | None:
        """Its name; None where it was not recognised."""
        return self.steps[0].schedule

    @figure
    def virtual_stages(self) -> int | None:
        """Virtual stages of a rank."""
        return self.steps[0].chunks

    @figure
    def p(self) -> int:
        """Stages."""
        return len(self.stages)

    @property
    def charts(self) -> tuple[GanttChart, ...]:
        """The step with the median section as measured, and its ideal where the schedule was recognised."""
        median = median_low([step.section or 0 for step in self.steps])
        step = next(step for step in self.steps if (step.section or 0) == median)
        return (step.measured,) if step.ideal is None else (step.measured, step.ideal)

    def sections(self) -> tuple[Section, ...]:
        """A table of stages, and the measured schedule above the ideal one."""
        table = self.TABLES[0]
        totals: list[Row] = []
        if self.sum_of("useful") is not None:
            idle = self.fraction_of_total
            parts = [self.sum_of(part) for part in ("useful", "schedule", "imbalance", "transfer", "host")]
            cells: list[Cell] = [None if part is None else _ms(part) for part in parts]
            totals.append(("all", "", *cells, percent(idle)))
        longest = max(chart.end for chart in self.charts)
        drawing = "\n\n".join(
            f"{chart.title}\n{to_text(chart, max(10, _DRAWING_COLUMNS * chart.end // longest))}"
            for chart in self.charts
        )
        return (
            table.section(self.stages, (*self._headline(), *self.notes), totals=totals),
            Section("Measured schedule", drawing=drawing),
        )

    def in_a_sentence(self) -> str:
        """The bubble, and the pipeline."""
        title = f"{self.schedule or 'unknown schedule'}, {self.p} stages, {self.microbatches} micro-batches, measured"
        share = percent(self.fraction_of_total)
        return title if share is None else f"{share:.2f} % of the time is bubble: {title}"

    def _headline(self) -> Iterator[str]:
        bubble, theory, section = percent(self.fraction_of_total), percent(self.theory_fraction_of_total), self.section
        if bubble is not None and section is not None:
            of_theory = "" if theory is None else f"; {theory:.1f} % is due to the schedule alone"
            steps = "one step" if len(self.steps) == 1 else f"{len(self.steps)} steps"
            yield f"{bubble:.1f} % of p x T is bubble{of_theory}. T is {_ms(section):.2f} ms, the mean of {steps}."
        yield (
            f"Schedule: {self.schedule or 'not recognised'}, {self.p} stages, {self.microbatches} micro-batches"
            + (f", {self.virtual_stages} chunks per stage." if (self.virtual_stages or 0) > 1 else ".")
        )


def measure_pipelines(partials: Sequence[RankPasses]) -> PipelineBubble:
    """Measure every complete step of every pipeline.

    Args:
        partials: The passes in each trace, at least one.

    Raises:
        MissingInput: The traces do not show which ranks form a pipeline, no step is complete, or the clocks of hosts
            are not known well enough.
    """
    pipelines = find_pipelines(partials)
    steps: list[BubbleStep] = []
    notes: dict[str, None] = {}
    unknown = ""
    for pipeline in pipelines:
        clocks = align_clocks(pipeline.traced)
        measured, incomplete = _measure_pipeline(pipeline, clocks)
        why = _explain_unknown(measured, clocks)
        unknown = unknown or why
        steps += measured if not why else []
        notes |= dict.fromkeys(_describe(pipeline, clocks, incomplete))
    if not steps:
        raise MissingInput(unknown or "; ".join(["no training step is complete on every stage", *notes]))
    shape = Counter(step.shape for step in steps).most_common(1)[0][0]
    usual = tuple(step for step in steps if step.shape == shape)
    if len(usual) < len(steps):
        notes[f"{len(steps) - len(usual)} steps with unusual micro-batches are excluded."] = None
    stages = tuple(
        StageMean(
            stage,
            **_mean_parts([step.parts.stages[stage] for step in usual]),
            ranks=tuple(rank for pipeline in pipelines if (rank := pipeline.ranks[stage]) is not None),
            section=_mean([step.section for step in usual]),
            microbatches=usual[0].microbatches,
        )
        for stage in range(len(pipelines[0].ranks))
    )
    bubble = PipelineBubble(stages, usual, tuple(notes))
    return PipelineBubble(stages, usual, (*notes, *_describe_schedule(bubble)))


def _mean_parts(parts: Sequence[StageParts]) -> dict[str, Any]:
    """The mean of each time of a stage; absent where it is absent in any step."""
    times = [asdict(one) for one in parts]
    return {name: _mean([one[name] for one in times]) for name in times[0] if name != "stage"}


def _mean(times: Sequence[int | None]) -> Fraction | None:
    present = [time for time in times if time is not None]
    return Fraction(sum(present), len(present)) if present and len(present) == len(times) else None


def _describe_schedule(bubble: PipelineBubble) -> Iterator[str]:
    """What a reader must know of the schedule, and of a section that cannot be."""
    if bubble.schedule is None:
        yield (
            "The order of passes matches no supported schedule, so the idle time is not split; `microbatches` is the "
            "number of forward passes of a stage."
        )
    elif bubble.schedule in (CUSTOM, CUSTOM_ZERO_BUBBLE):
        yield "The order of passes matches no supported schedule; theory is a simulation of the measured order."
    elif bubble.schedule == DUALPIPEV:
        yield "Theory is a simulation of the measured order, in which no passes overlap."
    if bubble.schedule is not None and bubble.microbatches < bubble.p:
        yield f"{bubble.microbatches} micro-batches cannot fill {bubble.p} stages."
    if (bubble.host_fraction_of_total or 0) < 0:
        yield "The measured section is shorter than its own passes allow: clocks are misaligned or passes overlap."


class Clocks(NamedTuple):
    """Offsets between the ranks' clocks, and their uncertainty.

    Attributes:
        offset_ns: By stage, to add to the rank's times.
        error_ns: The residual of the offset; 0 on a common clock; absent where ranks are on several hosts, and no
            collective shows how their clocks differ.
    """

    offset_ns: tuple[int, ...]
    error_ns: int | None


def align_clocks(stages: Sequence[RankPasses]) -> Clocks:
    """Align every host with the clock of the first stage's."""
    hosts: dict[str | int, list[RankPasses]] = {}
    for index, stage in enumerate(stages):
        hosts.setdefault(stage.host or index, []).append(stage)
    first, *others = hosts.values()
    offsets = {id(stage): 0 for stage in stages}
    errors, is_shown = [0], True
    for members in others:
        offset = min(_find_offsets(first, members), key=lambda one: one.residual_ns, default=None)
        names = first[0].host, members[0].host
        if offset is None:
            is_shown = is_shown and not all(names)
        elif is_apart(*names, offset):
            offsets |= {id(stage): -round(offset.offset_ns) for stage in members}
            errors.append(round(offset.residual_ns))
    return Clocks(tuple(offsets.values()), max(errors) if is_shown else None)


def _find_offsets(first: Sequence[RankPasses], others: Sequence[RankPasses]) -> Iterator[Offset]:
    """The clock of a host against another one, by the collectives that any two of their ranks made together."""
    runs_of_others = [_collect(stage) for stage in others]
    for runs_of_first in map(_collect, first):
        for runs in runs_of_others:
            common = sorted(runs.keys() & runs_of_first.keys())
            if common:
                sides = [[side[key] for key in common] for side in (runs_of_first, runs)]
                ends = np.array([[run.end_ns for run in side] for side in sides], np.int64)
                durations = np.array([[run.duration_ns for run in side] for side in sides], np.int64)
                yield find_offset(ends[1] - ends[0], durations[0] - durations[1], durations.min(axis=0))


def _collect(stage: RankPasses) -> dict[tuple[str, str, int], CollectiveRun]:
    return {(step.label, *key): run for step in stage.steps for key, run in step.collectives.items()}


def _explain_unknown(steps: Sequence[BubbleStep], clocks: Clocks) -> str:
    """Why idle time cannot be told from the error of the clocks; empty where it can."""
    if clocks.error_ns is None:
        return "the stages are on several hosts, and no collective shows how their clocks differ"
    idle = [time for step in steps for time in step.idle]
    mean_ns = sum(idle) / len(idle) if idle else None
    if mean_ns is None or clocks.error_ns < max(mean_ns, 1):
        return ""
    return (
        f"the clocks of the stages' hosts are known to about {clocks.error_ns / NS_PER_US:.0f} us, and a stage is idle "
        f"for {float(mean_ns) / NS_PER_US:.0f} us of a step"
    )


def _measure_pipeline(pipeline: Pipeline, clocks: Clocks) -> tuple[list[BubbleStep], int]:
    """Its complete steps, and how many are not."""
    offsets = iter(clocks.offset_ns)
    stages = [None if stage is None else _index_steps(stage, next(offsets)) for stage in pipeline.stages]
    traced = [steps for steps in stages if steps is not None]
    keys = dict.fromkeys(key for steps in traced for key in steps)
    measured = [
        _measure_step(key[0], [None if steps is None else steps[key] for steps in stages])
        for key in keys
        if all(key in steps for steps in traced) and _is_complete([steps[key] for steps in traced])
    ]
    return measured, len(keys) - len(measured)


def _index_steps(stage: RankPasses, offset_ns: int) -> dict[tuple[str, int], RankStep]:
    """The steps of a rank that have passes, by label and count, on the common clock."""
    counts: Counter[str] = Counter()
    steps = {}
    for step in stage.steps:
        if step.passes:
            steps[step.label, counts[step.label]] = step.shifted(offset_ns) if offset_ns else step
            counts[step.label] += 1
    return steps


def _is_complete(steps: Sequence[RankStep]) -> bool:
    counts = {(step.count(PassKind.FORWARD), step.count(PassKind.BACKWARD, PassKind.INPUT_GRADIENT)) for step in steps}
    return len(counts) == 1 and all(forwards == backwards > 0 for forwards, backwards in counts)


def _measure_step(label: str, stages: Sequence[RankStep | None]) -> BubbleStep:
    passes = [None if stage is None else stage.passes for stage in stages]
    traced = [stage for stage in stages if stage is not None]
    recognised = recognise_passes(passes)
    parts = None
    if recognised is not None:
        try:
            parts = (
                decompose(recognised.plan, traced)
                if len(traced) == len(stages)
                else compare_with_theory(recognised.plan, passes)
            )
        except Deadlock:
            recognised = None
    parts = parts or sum_idle_time(passes)
    return BubbleStep(
        step=label,
        schedule=recognised.name if recognised else None,
        chunks=recognised.chunks if recognised else None,
        microbatches=recognised.plan.microbatches if recognised else traced[0].count(PassKind.FORWARD),
        parts=parts,
        measured=_chart_step(label, passes, parts, recognised),
        ideal=draw_timeline("equal stages, no transfers", parts.ideal, parts.ticks_per_ns) if parts.ideal else None,
    )


def _chart_step(
    label: str,
    stages: Sequence[Sequence[MeasuredPass] | None],
    parts: StepParts,
    recognised: RecognisedSchedule | None,
) -> GanttChart:
    start = parts.start_ns
    lanes = []
    for stage, passes in enumerate(stages):
        numbers = _number_microbatches(passes or (), recognised.plan.orders[stage] if recognised else ())
        bars = tuple(
            Bar(measured.kind, number, max(measured.start_ns - start, 0), max(measured.end_ns - start, 0))
            for measured, number in zip(passes or (), numbers, strict=True)
        )
        lanes.append(Lane(f"stage {stage}", bars))
    last_end = max((bar.end for lane in lanes for bar in lane.bars), default=0)
    return GanttChart(f"measured, step {label}", tuple(lanes), max(parts.section_ns or 0, last_end))


def _number_microbatches(passes: Sequence[MeasuredPass], order: Sequence[Block]) -> list[int]:
    """The micro-batch of each pass of a stage: by the schedule, else as marked, else counted by kind."""
    ops = [op for block in order for op in block]
    if len(ops) == len(passes):
        return [op.microbatch for op in ops]
    counts: Counter[PassKind] = Counter()
    numbers = []
    for measured in passes:
        numbers.append(counts[measured.kind] if measured.microbatch is None else measured.microbatch)
        counts[measured.kind] += 1
    return numbers


def _describe(pipeline: Pipeline, clocks: Clocks, incomplete: int) -> Iterator[str]:
    """What a reader must know of the traces of a pipeline."""
    if pipeline.missing:
        stages = ", ".join(str(stage) for stage in pipeline.missing)
        ranks = ", ".join(str(pipeline.ranks[stage]) for stage in pipeline.missing)
        yield f"Stages {stages} (ranks {ranks}) have no trace: the bubble covers the remaining stages."
        if 0 in pipeline.missing:
            yield "Without stage 0 the beginning of the section is unknown, so no share of it is given."
    if incomplete:
        yield f"{incomplete} steps are not complete on every stage and are excluded."
    if clocks.error_ns is not None and any(clocks.offset_ns):
        yield f"Clocks of hosts were aligned by the ends of collectives, to about {clocks.error_ns / NS_PER_US:.0f} us."
    if not any(step.transfers for trace in pipeline.traced for step in trace.steps):
        yield "These traces show no transfer between stages: the time of transfers is among the host gaps."
    if not all(trace.is_marked for trace in pipeline.traced):
        yield (
            "Passes were inferred from the threads that launched the kernels, micro-batches from the transfers between "
            "them."
        )


def make_setup(bubble: PipelineBubble) -> Setup | None:
    """The schedule and the times of a measured pipeline; None where it has no name or a stage is missing."""
    count, schedule = bubble.microbatches, bubble.schedule
    if schedule not in set(Schedule) or bubble.virtual_stages is None or bubble.sum_of("useful") is None:
        return None
    forward, backward, weight = (
        tuple(round(Fraction(getattr(stage, part)) / count) for stage in bubble.stages)
        for part in ("forward", "backward", "weight")
    )
    weight = tuple(own or whole // 2 for own, whole in zip(weight, backward, strict=True))
    chunks = bubble.virtual_stages if schedule == Schedule.INTERLEAVED else 1
    times = PassTimes(forward, backward, weight, (0,) * bubble.p)
    return Setup(Schedule(schedule), bubble.p, count, chunks, times)
