"""Measures pipelines: every complete step, decomposed, of every pipeline that ran side by side.

A step is complete where every stage ran it with as many forward as backward passes. A stage's figures are means over
the complete steps and over the pipelines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.pipelines.bubble import MeasuredBubble, MeasuredStep
from perfscope.analyzers.pipelines.decomposition import StepParts, compare_with_theory, decompose, sum_idle_time
from perfscope.analyzers.pipelines.layout import Pipeline
from perfscope.analyzers.pipelines.rank_passes import CollectiveRun, MeasuredPass, RankPasses, RankStep
from perfscope.analyzers.pipelines.recognition import RecognisedSchedule, recognise_passes
from perfscope.analyzers.shared.clock_offsets import Offset, find_offset, is_apart
from perfscope.constants import NS_PER_US
from perfscope.errors import MissingInput
from perfscope.schedules.drawing import Bar, GanttChart, Lane, draw_scaled_timeline
from perfscope.schedules.operations import Block, PassKind
from perfscope.schedules.simulator import Deadlock


@dataclass(frozen=True, slots=True)
class Clocks:
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
                yield _find_offset([runs_of_first[key] for key in common], [runs[key] for key in common])


def _find_offset(first: Sequence[CollectiveRun], runs: Sequence[CollectiveRun]) -> Offset:
    """The clock of a rank against that of the first, by collectives that both made."""
    ends = np.array([[run.end_ns for run in side] for side in (first, runs)], np.int64)
    durations = np.array([[run.duration_ns for run in side] for side in (first, runs)], np.int64)
    return find_offset(ends[1] - ends[0], durations[0] - durations[1], durations.min(axis=0))


def _collect(stage: RankPasses) -> dict[tuple[str, str, int], CollectiveRun]:
    return {(step.label, *key): run for step in stage.steps for key, run in step.collectives.items()}


def measure_pipelines(pipelines: Sequence[Pipeline]) -> MeasuredBubble:
    """Measure every complete step of every pipeline.

    Raises:
        MissingInput: No step is complete, or the clocks of hosts are not known well enough.
    """
    steps: list[MeasuredStep] = []
    notes: list[str] = []
    unknown = ""
    for pipeline in pipelines:
        clocks = align_clocks(pipeline.traced)
        pipeline_steps, pipeline_notes = _measure_pipeline(pipeline, clocks)
        why = _explain_unknown(pipeline_steps, clocks)
        unknown = unknown or why
        steps.extend(pipeline_steps if not why else ())
        notes.extend(note for note in pipeline_notes if note not in notes)
    if not steps and unknown:
        raise MissingInput(unknown)
    if not steps:
        raise MissingInput("no training step is complete on every stage" + "".join(f"; {note}" for note in notes))
    usual_shape = Counter(step.shape for step in steps).most_common(1)[0][0]
    usual_steps = tuple(step for step in steps if step.shape == usual_shape)
    if len(usual_steps) < len(steps):
        notes.append(f"{len(steps) - len(usual_steps)} steps with unusual micro-batches are excluded.")
    ranks = tuple(
        tuple(rank for pipeline in pipelines if (rank := pipeline.ranks[stage]) is not None)
        for stage in range(len(pipelines[0].ranks))
    )
    return MeasuredBubble(ranks=ranks, steps=usual_steps, notes=tuple(notes))


def _explain_unknown(steps: Sequence[MeasuredStep], clocks: Clocks) -> str:
    """Why idle time cannot be told from the error of the clocks; empty where it can."""
    if clocks.error_ns is None:
        return "the stages are on several hosts, and no collective shows how their clocks differ"
    idle = [stage.idle for step in steps for stage in step.parts.stages if stage and stage.idle is not None]
    mean_ns = sum(idle) / len(idle) if idle else None
    if mean_ns is None or clocks.error_ns < max(mean_ns, 1):
        return ""
    return (
        f"the clocks of the stages' hosts are known to about {clocks.error_ns / NS_PER_US:.0f} us, and a stage is idle "
        f"for {mean_ns / NS_PER_US:.0f} us of a step"
    )


def _measure_pipeline(pipeline: Pipeline, clocks: Clocks) -> tuple[list[MeasuredStep], list[str]]:
    offsets = iter(clocks.offset_ns)
    stages = [None if stage is None else _index_steps(stage, next(offsets)) for stage in pipeline.stages]
    traced = [steps for steps in stages if steps is not None]
    measured: list[MeasuredStep] = []
    incomplete = 0
    for key in dict.fromkeys(key for steps in traced for key in steps):
        if all(key in steps for steps in traced) and _is_complete([steps[key] for steps in traced]):
            label, _ = key
            measured.append(_measure_step(label, [None if steps is None else steps[key] for steps in stages]))
        else:
            incomplete += 1
    return measured, _notes(pipeline, clocks, incomplete)


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


def _measure_step(label: str, stages: Sequence[RankStep | None]) -> MeasuredStep:
    passes = [None if stage is None else stage.passes for stage in stages]
    recognised = recognise_passes(passes)
    parts = _decompose_step(recognised, stages)
    if parts.theory is None:
        recognised = None
    forwards = next(stage.count(PassKind.FORWARD) for stage in stages if stage is not None)
    return MeasuredStep(
        label=label,
        schedule=recognised.name if recognised else None,
        chunks=recognised.chunks if recognised else None,
        microbatches=recognised.plan.microbatches if recognised else forwards,
        parts=parts,
        measured=_chart_step(label, passes, parts, recognised),
        ideal=draw_scaled_timeline("equal stages, no transfers", parts.ideal, parts.ticks_per_ns)
        if parts.ideal
        else None,
    )


def _decompose_step(recognised: RecognisedSchedule | None, stages: Sequence[RankStep | None]) -> StepParts:
    passes = [None if stage is None else stage.passes for stage in stages]
    if recognised is None:
        return sum_idle_time(passes)
    traced = [stage for stage in stages if stage is not None]
    try:
        if len(traced) < len(stages):
            return compare_with_theory(recognised.plan, passes)
        return decompose(recognised.plan, traced)
    except Deadlock:
        return sum_idle_time(passes)


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


def _notes(pipeline: Pipeline, clocks: Clocks, incomplete: int) -> list[str]:
    notes = []
    if pipeline.missing:
        stages = ", ".join(str(stage) for stage in pipeline.missing)
        ranks = ", ".join(str(pipeline.ranks[stage]) for stage in pipeline.missing)
        notes.append(f"Stages {stages} (ranks {ranks}) have no trace: the bubble covers the remaining stages.")
        if 0 in pipeline.missing:
            notes.append("Without stage 0 the beginning of the section is unknown, so no share of it is given.")
    if incomplete:
        notes.append(f"{incomplete} steps are not complete on every stage and are excluded.")
    if clocks.error_ns is not None and any(clocks.offset_ns):
        notes.append(
            f"Clocks of hosts were aligned by the ends of collectives, to about {clocks.error_ns / NS_PER_US:.0f} us."
        )
    if not any(step.transfers for trace in pipeline.traced for step in trace.steps):
        notes.append("These traces show no transfer between stages: the time of transfers is among the host gaps.")
    if not all(trace.is_marked for trace in pipeline.traced):
        notes.append(
            "Passes were inferred from the threads that launched the kernels, micro-batches from the transfers between "
            "them."
        )
    return notes
