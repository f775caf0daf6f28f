"""A predicted bubble as data for programs and as sections for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import asdict

from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.report import Column, Json, Row, Section, in_unit, percent, to_float
from perfscope.schedules.closed_forms import ClosedForm
from perfscope.schedules.prediction import Alternative, Setup, SimulatedStep, ThroughputTarget
from perfscope.schedules.simulator import to_fraction_of_ideal


class PredictionReport(Struct, frozen=True):
    """The bubble of a pipeline that has not run.

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
        share, form, times, target = self.fraction_of_total, self.form, self.setup.times, self.target
        return {
            "schedule": str(self.setup.schedule),
            "p": self.setup.devices,
            "microbatches": self.setup.microbatches,
            "virtual_stages": self.setup.chunks,
            "fraction_of_total": to_float(share),
            "fraction_of_ideal": None if share is None else float(to_fraction_of_ideal(share)),
            "closed_form": {
                "fraction_of_total": to_float(form.fraction_of_total),
                "fraction_of_ideal": to_float(form.fraction_of_ideal),
                "bubble": form.formula,
                "bubble_us": self._us(form.bubble),
                "applies": times.are_equal and form.bubble is not None,
                "reason": form.reason,
                "source": form.source,
            },
            "simulated": None if self.simulated is None else self._simulated_data(self.simulated),
            "times": {f"{name}_us": [ns / NS_PER_US for ns in part] for name, part in asdict(times).items()}
            if self.has_times
            else None,
            "alternatives": [
                {
                    "change": one.change,
                    "fraction_of_total": float(one.fraction_of_total),
                    "fraction_of_ideal": float(to_fraction_of_ideal(one.fraction_of_total)),
                    "speedup": float(one.speedup),
                    "peak_microbatches_in_flight": to_float(one.peak_in_flight),
                }
                for one in self.alternatives
            ],
            "target": None
            if target is None
            else {
                "tflops": float(target.tflops),
                "target_tflops": float(target.target_tflops),
                "limit_tflops": float(target.limit),
                "microbatches": target.microbatches,
            },
        }

    def _simulated_data(self, step: SimulatedStep) -> Json:
        timeline, ticks = step.timeline, step.ticks_per_ns
        busy = [timeline.busy(stage) for stage in range(self.setup.devices)]
        return {
            "fraction_of_total": float(timeline.fraction_of_period),
            "fraction_of_ideal": float(to_fraction_of_ideal(timeline.fraction_of_period)),
            "fraction_of_section": float(timeline.fraction_of_total),
            "section_us": self._us(step.section_ns),
            "period_us": self._us(step.period_ns),
            "stages": [
                {
                    "stage": stage,
                    "useful_us": self._us(Fraction(useful, ticks)),
                    "idle_us": self._us(Fraction(timeline.period - useful, ticks)),
                    "peak_microbatches_in_flight": float(step.peak_in_flight[stage]),
                }
                for stage, useful in enumerate(busy)
            ],
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
        rows: list[Row] = []
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

    def _notes(self) -> Iterator[str]:
        yield (
            "Of the total: idle time over the total time of the passes. Of the ideal: the same idle time over the "
            "compute time."
        )
        yield f"Closed form: equal stages and no transfer time; source: {self.form.source}."
        if self.form.reason:
            yield f"The closed form does not apply: {self.form.reason}."
        elif not self.setup.times.are_equal:
            yield "The closed form assumes equal stages with the same total work; the simulation does not."
        if not self.has_times:
            yield (
                "Without times, the forward pass, the input gradient and the weight gradient are assumed to take "
                "equally long."
            )
        yield from self.assumed
        if self.simulated is None:
            yield "Too large to simulate: closed form only."
        elif self.simulated.timeline.section != self.simulated.timeline.period:
            section = percent(self.simulated.timeline.fraction_of_total)
            yield (
                "A stage that is done may begin its next step. From the first forward pass to the end of the last "
                f"backward pass on any stage, {section:.2f} % is idle."
            )
        if self.setup.microbatches < self.setup.devices:
            yield (
                f"{self.setup.microbatches} micro-batches cannot fill {self.setup.devices} stages: "
                "some stage is idle all the time."
            )

    def _us(self, time_ns: Fraction | None) -> float | None:
        return in_unit(time_ns, NS_PER_US) if self.has_times else None

    def _ms(self, time_ns: Fraction | None) -> float | None:
        return in_unit(time_ns, NS_PER_MS) if self.has_times else None


def alternatives_section(alternatives: Sequence[Alternative], *assumptions: str) -> Section:
    """The effect of changes, for people."""
    columns = (
        Column("Change"),
        Column("Bubble of the total (%)", 2),
        Column("Relative throughput", 3),
        Column("Micro-batches in flight"),
    )
    rows = tuple(
        (one.change, percent(one.fraction_of_total), float(one.speedup), to_float(one.peak_in_flight))
        for one in alternatives
    )
    notes = (
        "Each change by itself, with the same times per micro-batch. More micro-batches of the same size make the "
        "global batch larger.",
        "Micro-batches in flight: those whose activations the fullest stage stores at once, weighted by its share of "
        "the model; DualPipe also stores the weights twice.",
        *assumptions,
    )
    return Section("Alternatives", columns, rows, notes=notes)


def _target_section(setup: Setup, target: ThroughputTarget) -> Section:
    columns = (
        Column("Measured TFLOPs per GPU"),
        Column("Measured micro-batches"),
        Column("Target TFLOPs per GPU"),
        Column("Micro-batches needed"),
        Column("TFLOPs per GPU without a bubble"),
    )
    goal = float(target.target_tflops)
    notes = [
        "Micro-batches are also called PP chunks or gradient accumulation steps. Assumes that a micro-batch keeps its "
        "size and its time, and that a step consists of its passes: no optimizer, no input."
    ]
    if target.microbatches is None:
        notes.append(f"{goal:g} cannot be reached by more micro-batches: make a micro-batch faster.")
    row = (float(target.tflops), setup.microbatches, goal, target.microbatches, float(target.limit))
    return Section("Micro-batches for a target throughput", columns, (row,), notes=tuple(notes))
