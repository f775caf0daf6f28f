"""The measured bubble as data for programs and as sections for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from perfscope.analyzers.pipelines.bubble import MeasuredBubble, MeasuredStep, sum_parts
from perfscope.analyzers.pipelines.decomposition import StageParts, StepParts
from perfscope.analyzers.pipelines.layout import find_pipelines
from perfscope.analyzers.pipelines.measurement import measure_pipelines
from perfscope.analyzers.pipelines.rank_passes import RankPasses
from perfscope.analyzers.pipelines.recognition import CUSTOM, CUSTOM_ZERO_BUBBLE, DUALPIPEV
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.report import Cell, Column, Json, Section, in_unit, percent, to_float
from perfscope.schedules.drawing import to_text

_DRAWING_COLUMNS = 100
_PARTS = ("useful", "schedule", "imbalance", "transfer", "host")


@dataclass(frozen=True, slots=True)
class BubbleReport:
    """The result of ``pipeline_bubble``."""

    bubble: MeasuredBubble

    def in_a_sentence(self) -> str:
        """The bubble, and the pipeline."""
        bubble, step = self.bubble, self.bubble.steps[0]
        title = f"{step.schedule or 'unknown schedule'}, {bubble.stages} stages, {step.microbatches} micro-batches"
        share = percent(bubble.fraction_of_total)
        return f"{title}, measured" if share is None else f"{share:.2f} % of the time is bubble: {title}, measured"

    def data(self) -> Json:
        """The value of ``results.pipeline_bubble``."""
        bubble = self.bubble
        step = bubble.steps[0]
        return {
            "fraction_of_total": to_float(bubble.fraction_of_total),
            "theory_fraction_of_total": to_float(bubble.theory),
            "schedule_fraction_of_total": bubble.share("schedule"),
            "imbalance_fraction_of_total": bubble.share("imbalance"),
            "transfer_fraction_of_total": bubble.share("transfer"),
            "host_fraction_of_total": bubble.share("host"),
            "stages": [_stage_data(bubble, stage) for stage in range(bubble.stages)],
            "section_us": in_unit(bubble.section_ns, NS_PER_US),
            "microbatches": step.microbatches,
            "schedule": step.schedule,
            "virtual_stages": step.chunks,
            "p": bubble.stages,
            "steps": [_step_data(step) for step in bubble.steps],
            "notes": list(_notes(bubble)),
        }

    def sections(self) -> tuple[Section, ...]:
        """A table of stages, and the measured schedule above the ideal one."""
        return (_stage_table(self.bubble), Section("Measured schedule", drawing=_draw(self.bubble)))


def _stage_data(bubble: MeasuredBubble, stage: int) -> dict[str, Json]:
    ranks = bubble.ranks[stage]
    row: dict[str, Json] = {
        "stage": stage,
        "rank": ranks[0] if ranks else None,
        **{f"{part}_us": in_unit(bubble.mean_part(stage, part), NS_PER_US) for part in (*_PARTS, "idle")},
        "forward_us": in_unit(bubble.forward_ns(stage), NS_PER_US),
        "backward_us": in_unit(bubble.backward_ns(stage), NS_PER_US),
    }
    return {**row, "ranks": list(ranks)} if len(ranks) > 1 else row


def _step_data(step: MeasuredStep) -> dict[str, Json]:
    section = step.parts.section_ns
    return {
        "step": step.label,
        "section_us": in_unit(section, NS_PER_US),
        "fraction_of_total": to_float(_idle_share(step.parts)),
        "theory_fraction_of_total": to_float(step.parts.theory),
        "stages": [_stage_of_step_data(stage, parts) for stage, parts in enumerate(step.parts.stages)],
    }


def _stage_of_step_data(stage: int, parts: StageParts | None) -> dict[str, Json]:
    def to_us(part: str) -> float | None:
        return None if parts is None else in_unit(getattr(parts, part), NS_PER_US)

    return {"stage": stage, **{f"{part}_us": to_us(part) for part in (*_PARTS, "idle")}}


def _idle_share(parts: StepParts) -> Fraction | None:
    idle = [stage.idle for stage in parts.stages if stage is not None and stage.idle is not None]
    return Fraction(sum(idle), parts.section_ns * len(idle)) if idle and parts.section_ns else None


def _stage_table(bubble: MeasuredBubble) -> Section:
    headings = ("Useful (ms)", "Schedule (ms)", "Imbalance (ms)", "Transfer (ms)", "Host gaps (ms)", "Idle (%)")
    columns = (Column("Stage"), Column("Rank"), *(Column(heading, 2) for heading in headings))
    rows = [
        _stage_row(bubble, str(stage), ", ".join(map(str, ranks)), [stage]) for stage, ranks in enumerate(bubble.ranks)
    ]
    if not any(bubble.mean_part(stage, "useful") is None for stage in range(bubble.stages)):
        rows.append(_stage_row(bubble, "all", "", range(bubble.stages)))
    return Section("Pipeline bubble", columns, tuple(rows), notes=(*_headline(bubble), *_notes(bubble)))


def _stage_row(bubble: MeasuredBubble, name: str, ranks: str, stages: Sequence[int]) -> tuple[Cell, ...]:
    section = bubble.section_ns
    idle = sum_parts([bubble.mean_part(stage, "idle") for stage in stages])
    idle_percent = None if idle is None or not section else percent(idle / (section * len(stages)))
    times = [in_unit(sum_parts([bubble.mean_part(stage, part) for stage in stages]), NS_PER_MS) for part in _PARTS]
    return (name, ranks, *times, idle_percent)


def _headline(bubble: MeasuredBubble) -> list[str]:
    step = bubble.steps[0]
    bubble_percent, theory_percent, section = (
        percent(bubble.fraction_of_total),
        percent(bubble.theory),
        bubble.section_ns,
    )
    lines = []
    if bubble_percent is not None and section is not None:
        theory = "" if theory_percent is None else f"; {theory_percent:.1f} % is due to the schedule alone"
        steps = "one step" if len(bubble.steps) == 1 else f"{len(bubble.steps)} steps"
        lines.append(
            f"{bubble_percent:.1f} % of p x T is bubble{theory}. T is {float(section) / NS_PER_MS:.2f} ms, the mean of "
            f"{steps}."
        )
    lines.append(
        f"Schedule: {step.schedule or 'not recognised'}, {bubble.stages} stages, {step.microbatches} micro-batches"
        + (f", {step.chunks} chunks per stage." if step.chunks and step.chunks > 1 else ".")
    )
    return lines


def _notes(bubble: MeasuredBubble) -> tuple[str, ...]:
    step = bubble.steps[0]
    notes = list(bubble.notes)
    if step.schedule is None:
        notes.append(
            "The order of passes matches no supported schedule, so the idle time is not split; `microbatches` is the "
            "number of forward passes of a stage."
        )
    elif step.schedule in (CUSTOM, CUSTOM_ZERO_BUBBLE):
        notes.append("The order of passes matches no supported schedule; theory is a simulation of the measured order.")
    elif step.schedule == DUALPIPEV:
        notes.append("Theory is a simulation of the measured order, in which no passes overlap.")
    if step.schedule is not None and step.microbatches < bubble.stages:
        notes.append(f"{step.microbatches} micro-batches cannot fill {bubble.stages} stages.")
    host = bubble.share("host")
    if host is not None and host < 0:
        notes.append(
            "The measured section is shorter than its own passes allow: clocks are misaligned or passes overlap."
        )
    return tuple(notes)


def _draw(bubble: MeasuredBubble) -> str:
    charts = bubble.charts
    longest = max(chart.end for chart in charts)
    drawings = (
        f"{chart.title}\n{to_text(chart, max(10, _DRAWING_COLUMNS * chart.end // longest))}" for chart in charts
    )
    return "\n\n".join(drawings)


def assemble_pipelines(partials: Sequence[RankPasses]) -> BubbleReport:
    """The bubble of every pipeline, from the passes in each trace, at least one.

    Raises:
        MissingInput: The traces do not show which ranks form a pipeline.
    """
    return BubbleReport(measure_pipelines(find_pipelines(_join_windows(partials))))


def _join_windows(partials: Sequence[RankPasses]) -> list[RankPasses]:
    """The traces of each rank as one, in the order of time: a run has a trace for every profiler window."""
    by_rank: dict[object, RankPasses] = {}
    for partial in sorted(partials, key=lambda partial: partial.start_ns):
        key = partial.rank if partial.rank is not None else object()
        earlier = by_rank.get(key)
        by_rank[key] = partial if earlier is None else earlier.followed_by(partial)
    return list(by_rank.values())
