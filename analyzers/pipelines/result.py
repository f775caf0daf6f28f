"""The measured bubble as data for programs and as sections for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median_low

from perfscope.analyzers.pipelines.decomposition import StageParts, StepParts
from perfscope.analyzers.pipelines.recognition import OTHER, OTHER_ZERO_BUBBLE
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.report import Cell, Column, Json, Section
from perfscope.schedules.lanes import Chart
from perfscope.schedules.text import draw

_DRAWING_COLUMNS = 100
_PARTS = ("useful", "schedule", "imbalance", "transfer", "host")


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One complete step of one pipeline.

    Attributes:
        label: What the profiler calls it.
        schedule: The schedule it followed; OTHER or OTHER_ZERO_BUBBLE for an order that marks tell and that has no name
            here; absent where it was not recognised.
        chunks: Virtual stages on a device; absent likewise.
        microbatches: How many; where the schedule was not recognised, forward passes of a stage.
        parts: Where the section went.
        measured, ideal: Drawings of the step and of its schedule with equal stages.
    """

    label: str
    schedule: str | None
    chunks: int | None
    microbatches: int
    parts: StepParts
    measured: Chart
    ideal: Chart | None

    @property
    def shape(self) -> tuple[str | None, int | None, int]:
        """What steps must have in common to be averaged."""
        return self.schedule, self.chunks, self.microbatches


@dataclass(frozen=True, slots=True)
class MeasuredBubble:
    """The bubble of a pipeline.

    Attributes:
        ranks: The ranks of each stage, one for each pipeline that ran side by side.
        steps: Complete steps of one shape, of all pipelines.
        notes: What a reader must know.
    """

    ranks: tuple[tuple[int, ...], ...]
    steps: tuple[MeasuredStep, ...]
    notes: tuple[str, ...]

    @property
    def stages(self) -> int:
        """Stages of the pipeline, p."""
        return len(self.ranks)

    @property
    def section_ns(self) -> Fraction | None:
        """Mean section of the complete steps."""
        return _mean([step.parts.section_ns for step in self.steps])

    @property
    def fraction_of_total(self) -> Fraction | None:
        """Idle time over p x T, sums over sums; over the stages that have a trace where some have none."""
        idle, total = 0, 0
        for step in self.steps:
            if step.parts.section_ns is None:
                return None
            for stage in step.parts.stages:
                if stage is not None and stage.idle is not None:
                    idle += stage.idle
                    total += step.parts.section_ns
        return Fraction(idle, total) if total else None

    @property
    def theory(self) -> Fraction | None:
        """What the schedule alone would leave idle; absent where it was not recognised."""
        known = [step.parts.theory for step in self.steps if step.parts.theory is not None]
        return sum(known, Fraction(0)) / len(known) if known else None

    def part(self, stage: int, name: str) -> Fraction | None:
        """Mean of one part on one stage, in nanoseconds; absent where it is unknown."""
        rows = [step.parts.stages[stage] for step in self.steps]
        return _mean([None if row is None else getattr(row, name) for row in rows])

    def forward_ns(self, stage: int) -> Fraction | None:
        """Mean device time of one micro-batch's forward pass on a stage."""
        forward = self.part(stage, "forward")
        return None if forward is None else forward / self.steps[0].microbatches

    def backward_ns(self, stage: int) -> Fraction | None:
        """Mean device time of one micro-batch's backward pass on a stage, the weight gradient included."""
        forward, useful = self.part(stage, "forward"), self.part(stage, "useful")
        return None if forward is None or useful is None else (useful - forward) / self.steps[0].microbatches

    def weight_ns(self, stage: int) -> Fraction | None:
        """Mean device time of one micro-batch's weight gradient where it runs apart; 0 where it does not."""
        weight = self.part(stage, "weight")
        return None if weight is None else weight / self.steps[0].microbatches

    def share(self, name: str) -> float | None:
        """One part of all stages over p x T."""
        section = self.section_ns
        parts = [self.part(stage, name) for stage in range(self.stages)]
        known = [part for part in parts if part is not None]
        if section is None or len(known) < len(parts):
            return None
        return float(sum(known, Fraction(0)) / (self.stages * section))

    @property
    def typical(self) -> MeasuredStep:
        """The step with the median section."""
        middle = median_low([step.parts.section_ns or 0 for step in self.steps])
        return next(step for step in self.steps if (step.parts.section_ns or 0) == middle)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """The measured schedule of a typical step, and the ideal one where the schedule was recognised."""
        step = self.typical
        return (step.measured,) if step.ideal is None else (step.measured, step.ideal)

    def data(self) -> Json:
        """The value of ``results.pipeline_bubble``."""
        step = self.steps[0]
        return {
            "fraction_of_total": _float(self.fraction_of_total),
            "theory_fraction_of_total": _float(self.theory),
            "schedule_fraction_of_total": self.share("schedule"),
            "imbalance_fraction_of_total": self.share("imbalance"),
            "transfer_fraction_of_total": self.share("transfer"),
            "host_fraction_of_total": self.share("host"),
            "stages": [self._stage_data(stage) for stage in range(self.stages)],
            "section_us": _us(self.section_ns),
            "microbatches": step.microbatches,
            "schedule": step.schedule,
            "virtual_stages": step.chunks,
            "p": self.stages,
            "steps": [self._step_data(one) for one in self.steps],
            "notes": list(self._all_notes()),
        }

    def _stage_data(self, stage: int) -> dict[str, Json]:
        ranks = self.ranks[stage]
        parts: dict[str, Json] = {f"{name}_us": _us(self.part(stage, name)) for name in (*_PARTS, "idle")}
        passes = {"forward_us": self.forward_ns(stage), "backward_us": self.backward_ns(stage)}
        row: dict[str, Json] = {
            "stage": stage,
            "rank": ranks[0] if ranks else None,
            **parts,
            **{name: _us(time) for name, time in passes.items()},
        }
        return {**row, "ranks": list(ranks)} if len(ranks) > 1 else row

    def _step_data(self, step: MeasuredStep) -> dict[str, Json]:
        section = step.parts.section_ns
        return {
            "step": step.label,
            "section_us": None if section is None else section / NS_PER_US,
            "fraction_of_total": _float(_fraction(step.parts)),
            "theory_fraction_of_total": _float(step.parts.theory),
            "stages": [_step_stage(stage, parts) for stage, parts in enumerate(step.parts.stages)],
        }

    def sections(self) -> tuple[Section, ...]:
        """A table of stages, and the measured schedule above the ideal one."""
        return (self._table(), Section("Measured schedule", drawing=self._drawing()))

    def _table(self) -> Section:
        headings = ("Useful (ms)", "Schedule (ms)", "Imbalance (ms)", "Transfer (ms)", "Host gaps (ms)", "Idle (%)")
        columns = (Column("Stage"), Column("Rank"), *(Column(heading, 2) for heading in headings))
        rows = [self._row(str(stage), ", ".join(map(str, self.ranks[stage])), [stage]) for stage in range(self.stages)]
        if not any(self.part(stage, "useful") is None for stage in range(self.stages)):
            rows.append(self._row("all", "", list(range(self.stages))))
        return Section("Pipeline bubble", columns, tuple(rows), notes=(*self._headline(), *self._all_notes()))

    def _row(self, name: str, ranks: str, stages: Sequence[int]) -> tuple[Cell, ...]:
        section = self.section_ns
        idle = _sum([self.part(stage, "idle") for stage in stages])
        share = None if idle is None or not section else float(100 * idle / (section * len(stages)))
        parts = [_ms(_sum([self.part(stage, part) for stage in stages])) for part in _PARTS]
        return (name, ranks, *parts, share)

    def _headline(self) -> list[str]:
        step, share = self.steps[0], self.fraction_of_total
        section = self.section_ns
        lines = []
        if share is not None and section is not None:
            measured = f"{float(100 * share):.1f} % of p x T is bubble"
            theory = "" if self.theory is None else f"; the schedule alone would leave {float(100 * self.theory):.1f} %"
            lines.append(f"{measured}{theory}. T is {float(section) / NS_PER_MS:.2f} ms, the mean of {self._count()}.")
        lines.append(
            f"Schedule: {step.schedule or 'not recognised'}, {self.stages} stages, {step.microbatches} micro-batches"
            + (f", {step.chunks} chunks a stage." if step.chunks and step.chunks > 1 else ".")
        )
        return lines

    def _count(self) -> str:
        return "one step" if len(self.steps) == 1 else f"{len(self.steps)} steps"

    def _all_notes(self) -> tuple[str, ...]:
        step = self.steps[0]
        notes = list(self.notes)
        if step.schedule is None:
            notes.append(
                "The order of passes is that of no schedule that is known here, so the idle time is not split; "
                "`microbatches` is the number of forward passes of a stage."
            )
        elif step.schedule in (OTHER, OTHER_ZERO_BUBBLE):
            notes.append("The order of passes has no name here; theory is a simulation of the order as it ran.")
        if step.schedule is not None and step.microbatches < self.stages:
            notes.append(f"{step.microbatches} micro-batches cannot fill {self.stages} stages.")
        host = self.share("host")
        if host is not None and host < 0:
            notes.append(
                "The measured section is shorter than its own passes allow: clocks or overlapping passes are off."
            )
        return tuple(notes)

    def _drawing(self) -> str:
        charts = self.charts
        longest = max(chart.end for chart in charts)
        drawn = (f"{chart.title}\n{draw(chart, max(10, _DRAWING_COLUMNS * chart.end // longest))}" for chart in charts)
        return "\n\n".join(drawn)


def _step_stage(stage: int, parts: StageParts | None) -> dict[str, Json]:
    def us(name: str) -> float | None:
        value = None if parts is None else getattr(parts, name)
        return None if value is None else value / NS_PER_US

    return {"stage": stage, **{f"{name}_us": us(name) for name in (*_PARTS, "idle")}}


def _fraction(parts: StepParts) -> Fraction | None:
    idle = [stage.idle for stage in parts.stages if stage is not None]
    known = [one for one in idle if one is not None]
    return Fraction(sum(known), parts.section_ns * len(known)) if known and parts.section_ns else None


def _mean(values: Sequence[int | None]) -> Fraction | None:
    known = [value for value in values if value is not None]
    return Fraction(sum(known), len(known)) if known and len(known) == len(values) else None


def _sum(values: Sequence[Fraction | None]) -> Fraction | None:
    known = [value for value in values if value is not None]
    return sum(known, Fraction(0)) if len(known) == len(values) else None


def _convert(scale: int) -> Callable[[Fraction | None], float | None]:
    return lambda value: None if value is None else float(value / scale)


_us, _ms, _float = _convert(NS_PER_US), _convert(NS_PER_MS), _convert(1)
