"""Measured pipelines put together: the mean over complete steps and over pipelines, stage by stage.

A step is complete where every stage ran it with as many forward as backward passes. A stage's figures are means over
the complete steps and over the pipelines that ran side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perfscope.analyzers.pipelines.clocks import Clocks, align
from perfscope.analyzers.pipelines.decomposition import StepParts, decompose, equal_stages, without_schedule
from perfscope.analyzers.pipelines.layout import Pipeline
from perfscope.analyzers.pipelines.pieces import Piece, RankPieces, RankStep
from perfscope.analyzers.pipelines.recognition import Recognised, recognise
from perfscope.analyzers.pipelines.result import MeasuredBubble, MeasuredStep
from perfscope.errors import MissingInput
from perfscope.schedules.lanes import Bar, Chart, Lane, scaled_chart_of
from perfscope.schedules.orders import Block, Kind
from perfscope.schedules.simulator import Deadlock


def measure_pipelines(pipelines: Sequence[Pipeline]) -> MeasuredBubble:
    """Measure every complete step of every pipeline.

    Raises:
        MissingInput: No step is complete.
    """
    steps: list[MeasuredStep] = []
    notes: list[str] = []
    for pipeline in pipelines:
        found, said = _measure(pipeline)
        steps.extend(found)
        notes.extend(line for line in said if line not in notes)
    if not steps:
        raise MissingInput("no training step is whole on every stage" + "".join(f"; {line}" for line in notes))
    usual = Counter(step.shape for step in steps).most_common(1)[0][0]
    kept = tuple(step for step in steps if step.shape == usual)
    if len(kept) < len(steps):
        notes.append(f"{len(steps) - len(kept)} steps with other micro-batches than most are left out.")
    ranks = tuple(
        tuple(rank for pipeline in pipelines if (rank := pipeline.ranks[stage]) is not None)
        for stage in range(len(pipelines[0].ranks))
    )
    return MeasuredBubble(ranks=ranks, steps=kept, notes=tuple(notes))


def _measure(pipeline: Pipeline) -> tuple[list[MeasuredStep], list[str]]:
    present = [one for one in pipeline.pieces if one is not None]
    clocks = align(present)
    offsets = iter(clocks.offset_ns)
    stages = [None if one is None else _on_the_clock(one, next(offsets)) for one in pipeline.pieces]
    steps: list[MeasuredStep] = []
    incomplete = 0
    for key in dict.fromkeys(key for stage in stages if stage is not None for key in stage):
        row = [None if stage is None else stage.get(key) for stage in stages]
        if any(step is None for step, stage in zip(row, stages, strict=True) if stage is not None):
            incomplete += 1
            continue
        if not _is_complete([step for step in row if step is not None]):
            incomplete += 1
            continue
        steps.append(_step(key[0], row))
    return steps, _notes(pipeline, present, clocks, incomplete)


def _on_the_clock(one: RankPieces, offset_ns: int) -> dict[tuple[str, int], RankStep]:
    """The steps of a rank that have passes, by label and count, on the common clock."""
    counts: Counter[str] = Counter()
    found = {}
    for step in one.steps:
        if step.pieces:
            found[step.label, counts[step.label]] = step.shifted(offset_ns) if offset_ns else step
            counts[step.label] += 1
    return found


def _is_complete(steps: Sequence[RankStep]) -> bool:
    counts = {
        (
            sum(piece.kind is Kind.FORWARD for piece in step.pieces),
            sum(piece.kind in (Kind.BACKWARD, Kind.INPUT) for piece in step.pieces),
        )
        for step in steps
    }
    return len(counts) == 1 and all(forwards == backwards > 0 for forwards, backwards in counts)


def _step(label: str, row: Sequence[RankStep | None]) -> MeasuredStep:
    pieces = [None if step is None else step.pieces for step in row]
    found = recognise(pieces)
    parts = _parts(found, row)
    if parts.theory is None:
        found = None
    forwards = next(sum(piece.kind is Kind.FORWARD for piece in own) for own in pieces if own is not None)
    return MeasuredStep(
        label=label,
        schedule=found.name if found else None,
        chunks=found.chunks if found else None,
        microbatches=found.plan.microbatches if found else forwards,
        parts=parts,
        measured=_chart(label, pieces, parts, found),
        ideal=scaled_chart_of("equal stages, no transfers", parts.ideal, parts.ticks_per_ns) if parts.ideal else None,
    )


def _parts(found: Recognised | None, row: Sequence[RankStep | None]) -> StepParts:
    pieces = [None if step is None else step.pieces for step in row]
    if found is None:
        return without_schedule(pieces)
    whole = [step for step in row if step is not None]
    try:
        if len(whole) < len(row):
            return equal_stages(found.plan, pieces)
        return decompose(found.plan, [step.pieces for step in whole], [step.transfers for step in whole])
    except Deadlock:
        return without_schedule(pieces)


def _chart(label: str, stages: Sequence[Sequence[Piece] | None], parts: StepParts, found: Recognised | None) -> Chart:
    start = parts.start_ns
    lanes = []
    for stage, pieces in enumerate(stages):
        numbers = _microbatches(pieces or (), found.plan.orders[stage] if found else ())
        bars = tuple(
            Bar(piece.kind, number, max(piece.start_ns - start, 0), max(piece.end_ns - start, 0))
            for piece, number in zip(pieces or (), numbers, strict=True)
        )
        lanes.append(Lane(f"stage {stage}", bars))
    return Chart(f"measured, step {label}", tuple(lanes), max(parts.section_ns or 0, _reach(lanes)))


def _microbatches(pieces: Sequence[Piece], order: Sequence[Block]) -> list[int]:
    """Which micro-batch each pass of a stage is: as marked, as the schedule has it, or in the order of its kind."""
    ops = [op for block in order for op in block]
    if len(ops) == len(pieces):
        return [op.microbatch for op in ops]
    counts: Counter[Kind] = Counter()
    numbers = []
    for piece in pieces:
        numbers.append(counts[piece.kind] if piece.microbatch is None else piece.microbatch)
        counts[piece.kind] += 1
    return numbers


def _reach(lanes: Sequence[Lane]) -> int:
    return max((bar.end for lane in lanes for bar in lane.bars), default=0)


def _notes(pipeline: Pipeline, present: Sequence[RankPieces], clocks: Clocks, incomplete: int) -> list[str]:
    notes = []
    if pipeline.missing:
        stages = ", ".join(str(stage) for stage in pipeline.missing)
        ranks = ", ".join(str(pipeline.ranks[stage]) for stage in pipeline.missing)
        notes.append(
            f"Stages {stages} (ranks {ranks}) have no trace: what the others say is given, and the bubble is over them."
        )
        if 0 in pipeline.missing:
            notes.append("Without stage 0 nobody knows when the section began, so there is no share of it.")
    if incomplete:
        notes.append(f"{incomplete} steps are not whole on every stage and are left out.")
    if clocks.is_doubtful:
        notes.append("The stages are on several hosts and no collective tells how their clocks differ.")
    elif any(clocks.offset_ns):
        notes.append(
            f"Clocks of hosts were aligned by the ends of collectives, to about {clocks.error_ns / 1000:.0f} us."
        )
    if not any(step.transfers for one in present for step in one.steps):
        notes.append("No transfer is seen in these traces: what transfers took is among the host gaps.")
    if not all(one.is_marked for one in present):
        notes.append("Passes were told by who launched the kernels, and micro-batches by the transfers between them.")
    return notes
