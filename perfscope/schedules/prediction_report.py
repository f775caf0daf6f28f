"""A predicted bubble as data for programs and as sections for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.report import Cell, Column, Json, Section, in_unit, percent, to_float
from perfscope.schedules.closed_forms import ClosedForm
from perfscope.schedules.prediction import Alternative, Setup, SimulatedStep, ThroughputTarget
from perfscope.schedules.simulator import to_fraction_of_ideal


@dataclass(frozen=True, slots=True)
class PredictionReport:
    """The answer of ``perfscope plan --microbatches`` for a pipeline that has not run.

    Attributes:
        setup: The pipeline.
        form: The closed form for equal stages.
        simulated: The simulated step; absent where it is too large.
        alternatives: The effect of changes; the setup comes first.
        target: The micro-batches that a target throughput takes; absent without a target.
        has_times: False where the times are the default proportions, which have no unit.
        drawing: The schedule in characters.
        assumed: What was assumed for times that were not set, as sentences.
    """

    setup: Setup
    form: ClosedForm
    simulated: SimulatedStep | None
    alternatives: Sequence[Alternative]
    target: ThroughputTarget | None
    has_times: bool
    drawing: str
    assumed: tuple[str, ...] = ()

    @property
    def fraction_of_total(self) -> Fraction | None:
        """The simulated bubble; the closed form's where the step is too large to simulate and the form applies."""
        if self.simulated:
            return self.simulated.timeline.fraction_of_period
        return self.form.fraction_of_total if self.setup.times.are_equal else None

    def data(self) -> dict[str, Json]:
        """The result for JSON."""
        share = self.fraction_of_total
        return {
            "schedule": str(self.setup.schedule),
            "p": self.setup.devices,
            "microbatches": self.setup.microbatches,
            "virtual_stages": self.setup.chunks,
            "fraction_of_total": to_float(share),
            "fraction_of_ideal": None if share is None else float(to_fraction_of_ideal(share)),
            "closed_form": {
                "fraction_of_total": to_float(self.form.fraction_of_total),
                "fraction_of_ideal": to_float(self.form.fraction_of_ideal),
                "bubble": self.form.formula,
                "bubble_us": self._us(self.form.bubble),
                "applies": self.setup.times.are_equal and self.form.bubble is not None,
                "reason": self.form.reason,
                "source": self.form.source,
            },
            "simulated": self._simulated_data(),
            "times": self._times_data(),
            "alternatives": _alternatives_data(self.alternatives),
            "target": None if self.target is None else _target_data(self.target),
        }

    def _simulated_data(self) -> Json:
        step = self.simulated
        if step is None:
            return None
        timeline = step.timeline
        return {
            "fraction_of_total": float(timeline.fraction_of_period),
            "fraction_of_ideal": float(to_fraction_of_ideal(timeline.fraction_of_period)),
            "fraction_of_section": float(timeline.fraction_of_total),
            "section_us": self._us(step.section_ns),
            "period_us": self._us(step.period_ns),
            "stages": [
                {
                    "stage": stage,
                    "useful_us": self._us(Fraction(timeline.busy(stage), step.ticks_per_ns)),
                    "idle_us": self._us(Fraction(timeline.period - timeline.busy(stage), step.ticks_per_ns)),
                    "peak_microbatches_in_flight": float(step.peak_in_flight[stage]),
                }
                for stage in range(self.setup.devices)
            ],
        }

    def _times_data(self) -> Json:
        times = self.setup.times
        if not self.has_times:
            return None
        return {
            "forward_us": [time / NS_PER_US for time in times.forward],
            "backward_us": [time / NS_PER_US for time in times.backward],
            "weight_us": [time / NS_PER_US for time in times.weight],
            "transfer_us": [time / NS_PER_US for time in times.transfer],
        }

    def sections(self) -> tuple[Section, ...]:
        """The result for people."""
        sections = [self._summary()]
        if self.drawing:
            sections.append(Section("Schedule", drawing=self.drawing))
        if self.alternatives:
            sections.append(alternatives_section(self.alternatives))
        if self.target:
            sections.append(_target_section(self.setup, self.target))
        return tuple(sections)

    def _summary(self) -> Section:
        rows: list[tuple[Cell, ...]] = []
        if self.simulated:
            share = self.simulated.timeline.fraction_of_period
            of_ideal = percent(to_fraction_of_ideal(share))
            rows.append(("simulated", percent(share), of_ideal, self._ms(self.simulated.period_ns)))
        total = None if self.form.bubble is None else self.form.bubble + self.form.useful
        of_total, of_ideal = percent(self.form.fraction_of_total), percent(self.form.fraction_of_ideal)
        rows.append((f"closed form {self.form.formula}", of_total, of_ideal, self._ms(total)))
        columns = [Column("Bubble"), Column("Of the total (%)", 2), Column("Of the ideal (%)", 2)]
        if self.has_times:
            columns.append(Column("Passes of a step (ms)", 3))
        cells = tuple(row[: len(columns)] for row in rows)
        return Section("Pipeline bubble", tuple(columns), cells, notes=tuple(self._notes()))

    def _notes(self) -> list[str]:
        notes = [
            "Of the total: idle time over the total time of the passes. Of the ideal: the same idle time over the "
            "compute time.",
            f"Closed form: equal stages and no transfer time; source: {self.form.source}.",
        ]
        if self.form.reason:
            notes.append(f"The closed form does not apply: {self.form.reason}.")
        elif not self.setup.times.are_equal:
            notes.append("The closed form assumes equal stages with the same total work; the simulation does not.")
        if not self.has_times:
            notes.append(
                "Without times, the forward pass, the input gradient and the weight gradient are assumed to take "
                "equally long."
            )
        notes += self.assumed
        if self.simulated is None:
            notes.append("Too large to simulate: closed form only.")
        elif self.simulated.timeline.section != self.simulated.timeline.period:
            section = percent(self.simulated.timeline.fraction_of_total)
            notes.append(
                "A stage that is done may begin its next step. From the first forward pass to the end of the last "
                f"backward pass on any stage, {section:.2f} % is idle."
            )
        if self.setup.microbatches < self.setup.devices:
            notes.append(
                f"{self.setup.microbatches} micro-batches cannot fill {self.setup.devices} stages: "
                "some stage is idle all the time."
            )
        return notes

    def _us(self, time_ns: Fraction | None) -> float | None:
        return in_unit(time_ns, NS_PER_US) if self.has_times else None

    def _ms(self, time_ns: Fraction | None) -> float | None:
        return in_unit(time_ns, NS_PER_MS) if self.has_times else None


def _alternatives_data(alternatives: Sequence[Alternative]) -> Json:
    """The effect of changes, for JSON."""
    return [
        {
            "change": alternative.change,
            "fraction_of_total": float(alternative.fraction_of_total),
            "fraction_of_ideal": float(to_fraction_of_ideal(alternative.fraction_of_total)),
            "speedup": float(alternative.speedup),
            "peak_microbatches_in_flight": to_float(alternative.peak_in_flight),
        }
        for alternative in alternatives
    ]


def alternatives_section(alternatives: Sequence[Alternative], *assumptions: str) -> Section:
    """The effect of changes, for people."""
    columns = (
        Column("Change"),
        Column("Bubble of the total (%)", 2),
        Column("Relative throughput", 3),
        Column("Micro-batches in flight"),
    )
    rows = tuple(
        (
            alternative.change,
            percent(alternative.fraction_of_total),
            float(alternative.speedup),
            to_float(alternative.peak_in_flight),
        )
        for alternative in alternatives
    )
    notes = (
        "Each change by itself, with the same times per micro-batch. More micro-batches of the same size make the "
        "global batch larger.",
        "Micro-batches in flight: those whose activations the fullest stage stores at once, weighted by its share of "
        "the model; DualPipe also stores the weights twice.",
        *assumptions,
    )
    return Section("Alternatives", columns, rows, notes=notes)


def _target_data(target: ThroughputTarget) -> Json:
    return {
        "tflops": float(target.tflops),
        "target_tflops": float(target.target_tflops),
        "limit_tflops": float(target.limit),
        "microbatches": target.microbatches,
    }


def _target_section(setup: Setup, target: ThroughputTarget) -> Section:
    columns = (
        Column("Measured TFLOPs per GPU"),
        Column("Measured micro-batches"),
        Column("Target TFLOPs per GPU"),
        Column("Micro-batches needed"),
        Column("TFLOPs per GPU without a bubble"),
    )
    goal, limit, measured = float(target.target_tflops), float(target.limit), float(target.tflops)
    notes = [
        "Micro-batches are also called PP chunks or gradient accumulation steps. Assumes that a micro-batch keeps its "
        "size and its time, and that a step consists of its passes: no optimizer, no input."
    ]
    if target.microbatches is None:
        notes.append(f"{goal:g} cannot be reached by more micro-batches: make a micro-batch faster.")
    row = (measured, setup.microbatches, goal, target.microbatches, limit)
    return Section("Micro-batches for a target throughput", columns, (row,), notes=tuple(notes))
