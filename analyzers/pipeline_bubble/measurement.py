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
from msgspec.structs import asdict, replace

from perfscope.analyzers.pipeline_bubble.decomposition import (
    BubbleParts,
    StageParts,
    StageShares,
    decompose,
    sum_idle_time,
)
from perfscope.analyzers.pipeline_bubble.layout import PipelineRanks, find_pipelines
from perfscope.analyzers.pipeline_bubble.rank_passes import CollectiveRun, MeasuredPass, PassesOfStep, RankPasses
from perfscope.analyzers.pipeline_bubble.recognition import (
    CUSTOM,
    CUSTOM_ZERO_BUBBLE,
    DUALPIPEV,
    RecognisedSchedule,
    recognise_passes,
)
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.measures.clock_offsets import Offset, find_offset, is_apart
from perfscope.report import Cell, Section, percent
from perfscope.result import Column, Doc, Figures, InUnit, Table, figure
from perfscope.schedules.drawing import COLUMNS, Bar, GanttChart, Lane, draw_timeline, to_text
from perfscope.schedules.operations import Block, PassKind
from perfscope.schedules.simulator import Deadlock


class BubbleStep(Figures, frozen=True):
    """One measured step of one pipeline.

    ``schedule`` and ``chunks``, virtual stages on a device, are absent where it was not recognised. Micro-batches are
    then the forward passes of a stage.
    """

    step: Annotated[str, Doc("The profiler's name of the step.")]
    schedule: str | None
    chunks: int | None
    microbatches: int
    parts: BubbleParts
    measured: GanttChart
    ideal: GanttChart | None
    section_us = InUnit(
        "section", NS_PER_US, "T: from the first forward pass of stage 0 to the end of the last backward pass."
    )

    @property
    def section(self) -> int:
        """T in nanoseconds."""
        return self.parts.section_ns

    @property
    def shape(self) -> tuple[str | None, int | None, int]:
        """What steps must have in common to be averaged."""
        return self.schedule, self.chunks, self.microbatches

    @property
    def idle(self) -> Fraction:
        """The idle time of all stages."""
        return Fraction(sum(stage.idle for stage in self.parts.stages))

    @figure
    def fraction_of_total(self) -> float:
        """Idle time over p x T."""
        return float(self.idle / (self.section * len(self.parts.stages)))

    @figure
    def theory_fraction_of_total(self) -> float | None:
        """The same for equal stages, without transfers and host gaps."""
        return None if self.parts.theory is None else float(self.parts.theory)

    @figure
    def stages(self) -> tuple[StageParts, ...]:
        """Each stage."""
        return self.parts.stages


class StageMean(StageParts, frozen=True, kw_only=True):
    """One stage in a mean step: ``useful + schedule + imbalance + transfer + host`` is the section."""

    ranks: Annotated[tuple[int, ...], Doc("Its ranks: one for each pipeline that ran side by side.")]
    section: Fraction
    microbatches: int
    forward_us = InUnit("forward", NS_PER_US, "Time of the forward pass of a micro-batch.", per="microbatches")
    backward_us = InUnit(
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
    def backward(self) -> int | Fraction:
        """Time of all backward passes of a step."""
        return self.useful - self.forward


def _ms(time: Fraction) -> float:
    return float(time / NS_PER_MS)


class PipelineBubble(StageShares, frozen=True):
    """``results.pipeline_bubble``: the bubble of a pipeline, from traces."""

    stages: Annotated[tuple[StageMean, ...], Doc("Each stage in a mean step.")]
    section: Fraction
    steps: Annotated[tuple[BubbleStep, ...], Doc("Each complete step of the usual shape, of all pipelines.")]
    notes: Annotated[tuple[str, ...], Doc("What a reader must know.")]
    microbatches: Annotated[int, Doc("Micro-batches in a step.")]
    schedule: Annotated[str | None, Doc("Its name; None where it was not recognised.")]
    virtual_stages: Annotated[int | None, Doc("Virtual stages of a rank.")]
    section_us = InUnit("section", NS_PER_US, "T, the mean over steps.")

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
                Column("Idle (%)", lambda row: percent(row.idle / row.section), None, 2),
            ),
        ),
    )

    @figure
    def fraction_of_total(self) -> float:
        """Idle time over p x T."""
        return float(sum(step.idle for step in self.steps) / (self.p * sum(step.section for step in self.steps)))

    @figure
    def theory_fraction_of_total(self) -> float | None:
        """The same for equal stages, without transfers and host gaps."""
        shares = [step.parts.theory for step in self.steps if step.parts.theory is not None]
        return float(sum(shares) / len(shares)) if shares else None

    @figure
    def transfer_fraction_of_total(self) -> float | None:
        """The part of transfers, with what they took longer than their shorter kernels say."""
        return self.share_of("transfer")

    @figure
    def host_fraction_of_total(self) -> float | None:
        """The part of gaps in which a device ran nothing."""
        return self.share_of("host")

    @property
    def charts(self) -> tuple[GanttChart, ...]:
        """The step with the median section as measured, and its ideal where the schedule was recognised."""
        median = median_low([step.section for step in self.steps])
        step = next(step for step in self.steps if step.section == median)
        return (step.measured,) if step.ideal is None else (step.measured, step.ideal)

    def sections(self) -> tuple[Section, ...]:
        """A table of stages, and the measured schedule above the ideal one."""
        table = self.TABLES[0]
        parts = [self.sum_of(part) for part in ("useful", "schedule", "imbalance", "transfer", "host")]
        cells: list[Cell] = [None if part is None else _ms(part) for part in parts]
        totals = (("all", "", *cells, percent(self.fraction_of_total)),)
        longest = max(chart.end for chart in self.charts)
        drawing = "\n\n".join(
            f"{chart.title}\n{to_text(chart, max(10, COLUMNS * chart.end // longest))}" for chart in self.charts
        )
        return (
            table.section(self.stages, (*self._headline(), *self.notes), totals=totals),
            Section("Measured schedule", drawing=drawing),
        )

    def in_a_sentence(self) -> str:
        """The bubble, and the pipeline."""
        title = f"{self.schedule or 'unknown schedule'}, {self.p} stages, {self.microbatches} micro-batches, measured"
        return f"{percent(self.fraction_of_total):.2f} % of the time is bubble: {title}"

    def _headline(self) -> Iterator[str]:
        bubble, theory = percent(self.fraction_of_total), percent(self.theory_fraction_of_total)
        of_theory = "" if theory is None else f"; {theory:.1f} % is due to the schedule alone"
        steps = "one step" if len(self.steps) == 1 else f"{len(self.steps)} steps"
        yield f"{bubble:.1f} % of p x T is bubble{of_theory}. T is {_ms(self.section):.2f} ms, the mean of {steps}."
        yield (
            f"Schedule: {self.schedule or 'not recognised'}, {self.p} stages, {self.microbatches} micro-batches"
            + (f", {self.virtual_stages} chunks per stage." if (self.virtual_stages or 0) > 1 else ".")
        )


def measure_pipelines(partials: Sequence[RankPasses]) -> PipelineBubble:
    """Measure every complete step of every pipeline.

    MissingInput where the traces show no pipeline, a stage has none, or the clocks of hosts are not known well enough.
    """
    pipelines = find_pipelines(partials)
    steps: list[BubbleStep] = []
    notes: dict[str, None] = {}
    unknown = ""
    for pipeline in pipelines:
        if pipeline.missing:
            ranks = ", ".join(str(pipeline.ranks[stage]) for stage in pipeline.missing)
            raise MissingInput(f"stages {', '.join(map(str, pipeline.missing))} (ranks {ranks}) have no trace")
        clocks = align_clocks(pipeline.traced)
        measured, incomplete = _measure_pipeline(pipeline.traced, clocks)
        why = _explain_unknown(measured, clocks)
        unknown = unknown or why
        steps += measured if not why else []
        notes |= dict.fromkeys(_describe(pipeline, clocks, incomplete))
    if not steps:
        raise MissingInput(unknown or "; ".join(["no training step is complete on every stage", *notes]))
    most = Counter(step.shape for step in steps).most_common(1)[0][0]
    usual = tuple(step for step in steps if step.shape == most)
    if len(usual) < len(steps):
        notes[f"{len(steps) - len(usual)} steps with unusual micro-batches are excluded."] = None
    stages = tuple(
        StageMean(
            stage,
            **_mean_parts([step.parts.stages[stage] for step in usual]),
            ranks=tuple(rank for pipeline in pipelines if (rank := pipeline.ranks[stage]) is not None),
            section=Fraction(sum(step.section for step in usual), len(usual)),
            microbatches=usual[0].microbatches,
        )
        for stage in range(len(pipelines[0].ranks))
    )
    shape = usual[0].microbatches, usual[0].schedule, usual[0].chunks
    bubble = PipelineBubble(stages, stages[0].section, usual, tuple(notes), *shape)
    return replace(bubble, notes=(*notes, *_describe_schedule(bubble)))


def _mean_parts(parts: Sequence[StageParts]) -> dict[str, Any]:
    times = [asdict(one) for one in parts]
    return {name: _mean([one[name] for one in times]) for name in times[0] if name != "stage"}


def _mean(times: Sequence[int | None]) -> Fraction | None:
    present = [time for time in times if time is not None]
    return Fraction(sum(present), len(present)) if len(present) == len(times) else None


def _describe_schedule(bubble: PipelineBubble) -> Iterator[str]:
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
    """By stage, what is added to a rank's times, and how far that may be off; 0 on a common clock.

    ``error_ns`` is None where ranks are on several hosts, and no collective shows how their clocks differ.
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
    if clocks.error_ns is None:
        return "the stages are on several hosts, and no collective shows how their clocks differ"
    stages = sum(len(step.parts.stages) for step in steps)
    if not stages or clocks.error_ns < max(mean_ns := sum(step.idle for step in steps) / stages, 1):
        return ""
    return (
        f"the clocks of the stages' hosts are known to about {clocks.error_ns / NS_PER_US:.0f} us, and a stage is idle "
        f"for {float(mean_ns) / NS_PER_US:.0f} us of a step"
    )


def _measure_pipeline(traced: Sequence[RankPasses], clocks: Clocks) -> tuple[list[BubbleStep], int]:
    stages = [_index_steps(stage, offset_ns) for stage, offset_ns in zip(traced, clocks.offset_ns, strict=True)]
    keys = dict.fromkeys(key for steps in stages for key in steps)
    measured = [
        _measure_step(key[0], [steps[key] for steps in stages])
        for key in keys
        if all(key in steps for steps in stages) and _is_complete([steps[key] for steps in stages])
    ]
    return measured, len(keys) - len(measured)


def _index_steps(stage: RankPasses, offset_ns: int) -> dict[tuple[str, int], PassesOfStep]:
    counts: Counter[str] = Counter()
    steps = {}
    for step in stage.steps:
        if step.passes:
            steps[step.label, counts[step.label]] = step.shifted(offset_ns) if offset_ns else step
            counts[step.label] += 1
    return steps


def _is_complete(steps: Sequence[PassesOfStep]) -> bool:
    counts = {(step.count(PassKind.FORWARD), step.count(PassKind.BACKWARD, PassKind.INPUT_GRADIENT)) for step in steps}
    return len(counts) == 1 and all(forwards == backwards > 0 for forwards, backwards in counts)


def _measure_step(label: str, stages: Sequence[PassesOfStep]) -> BubbleStep:
    passes = [stage.passes for stage in stages]
    recognised, parts = recognise_passes(passes), sum_idle_time(passes)
    if recognised is not None:
        try:
            parts = decompose(recognised.plan, stages)
        except Deadlock:
            recognised = None
    return BubbleStep(
        step=label,
        schedule=recognised.name if recognised else None,
        chunks=recognised.chunks if recognised else None,
        microbatches=recognised.plan.microbatches if recognised else stages[0].count(PassKind.FORWARD),
        parts=parts,
        measured=_chart_step(label, passes, parts, recognised),
        ideal=draw_timeline("equal stages, no transfers", parts.ideal, parts.ticks_per_ns) if parts.ideal else None,
    )


def _chart_step(
    label: str,
    stages: Sequence[Sequence[MeasuredPass]],
    parts: BubbleParts,
    recognised: RecognisedSchedule | None,
) -> GanttChart:
    start = parts.start_ns
    lanes = []
    for stage, passes in enumerate(stages):
        numbers = _number_microbatches(passes, recognised.plan.orders[stage] if recognised else ())
        bars = tuple(
            Bar(measured.kind, number, max(measured.start_ns - start, 0), max(measured.end_ns - start, 0))
            for measured, number in zip(passes, numbers, strict=True)
        )
        lanes.append(Lane(f"stage {stage}", bars))
    last_end = max((bar.end for lane in lanes for bar in lane.bars), default=0)
    return GanttChart(f"measured, step {label}", tuple(lanes), max(parts.section_ns, last_end))


def _number_microbatches(passes: Sequence[MeasuredPass], order: Sequence[Block]) -> list[int]:
    ops = [op for block in order for op in block]
    if len(ops) == len(passes):
        return [op.microbatch for op in ops]
    counts: Counter[PassKind] = Counter()
    numbers = []
    for measured in passes:
        numbers.append(counts[measured.kind] if measured.microbatch is None else measured.microbatch)
        counts[measured.kind] += 1
    return numbers


def _describe(pipeline: PipelineRanks, clocks: Clocks, incomplete: int) -> Iterator[str]:
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
