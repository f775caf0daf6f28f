"""A prediction as data for programs and as sections for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from perfscope.constants import NS_PER_US
from perfscope.report import Cell, Column, Json, Section
from perfscope.schedules.closed_forms import ClosedForm
from perfscope.schedules.prediction import Alternative, Setup, Simulated, Target
from perfscope.schedules.simulator import of_ideal


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that ``perfscope bubble`` says.

    Attributes:
        setup: What was asked.
        form: The closed form for equal stages.
        simulated: The simulated step; absent where it is too large.
        alternatives: What else would give, the setup first.
        target: Micro-batches until a throughput, where one was asked for.
        times_are_given: False where the times are the default proportion and carry no unit.
        drawing: The schedule in characters.
    """

    setup: Setup
    form: ClosedForm
    simulated: Simulated | None
    alternatives: Sequence[Alternative]
    target: Target | None
    times_are_given: bool
    drawing: str

    @property
    def fraction_of_total(self) -> Fraction | None:
        """The simulation's answer; the formula's where there was too much to simulate and the formula applies."""
        if self.simulated:
            return self.simulated.timeline.fraction_of_period
        return self.form.fraction_of_total if self.setup.times.equal else None

    def data(self) -> dict[str, Json]:
        """The result for JSON."""
        share = self.fraction_of_total
        return {
            "schedule": str(self.setup.schedule),
            "p": self.setup.devices,
            "microbatches": self.setup.microbatches,
            "virtual_stages": self.setup.chunks,
            "fraction_of_total": _float(share),
            "fraction_of_ideal": None if share is None else float(of_ideal(share)),
            "closed_form": {
                "fraction_of_total": _float(self.form.fraction_of_total),
                "fraction_of_ideal": _float(self.form.fraction_of_ideal),
                "bubble": self.form.formula,
                "bubble_us": self._us(self.form.bubble),
                "applies": self.setup.times.equal and self.form.bubble is not None,
                "reason": self.form.reason,
                "source": self.form.source,
            },
            "simulated": self._simulated_data(),
            "times": self._times_data(),
            "alternatives": alternatives_data(self.alternatives),
            "target": None if self.target is None else _target_data(self.target),
        }

    def _simulated_data(self) -> Json:
        result = self.simulated
        if result is None:
            return None
        timeline = result.timeline
        return {
            "fraction_of_total": float(timeline.fraction_of_period),
            "fraction_of_ideal": float(of_ideal(timeline.fraction_of_period)),
            "fraction_of_section": float(timeline.fraction_of_total),
            "section_us": self._us(result.section_ns),
            "period_us": self._us(result.period_ns),
            "stages": [
                {
                    "stage": stage,
                    "useful_us": self._us(Fraction(timeline.busy(stage), result.ticks_per_ns)),
                    "idle_us": self._us(Fraction(timeline.period - timeline.busy(stage), result.ticks_per_ns)),
                    "peak_microbatches_in_flight": float(result.peak_in_flight[stage]),
                }
                for stage in range(self.setup.devices)
            ],
        }

    def _times_data(self) -> Json:
        times = self.setup.times
        if not self.times_are_given:
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
            rows.append(("simulated", _percent(share), _percent(of_ideal(share)), self._ms(self.simulated.period_ns)))
        total = None if self.form.bubble is None else self.form.bubble + self.form.useful
        of_total, ideal = _percent(self.form.fraction_of_total), _percent(self.form.fraction_of_ideal)
        rows.append((f"closed form {self.form.formula}", of_total, ideal, self._ms(total)))
        columns = [Column("Bubble"), Column("Of the total (%)", 2), Column("Of the ideal (%)", 2)]
        if self.times_are_given:
            columns.append(Column("Passes of a step (ms)", 3))
        cells = tuple(row[: len(columns)] for row in rows)
        return Section("Pipeline bubble", tuple(columns), cells, notes=tuple(self._notes()))

    def _notes(self) -> list[str]:
        notes = [
            "Of the total: idle time over the whole time of the passes. Of the ideal: the same idle time over the time "
            "of the work alone.",
            f"Closed form: equal stages and no transfer time; source: {self.form.source}.",
        ]
        if self.form.reason:
            notes.append(f"The closed form gives nothing here: {self.form.reason}.")
        elif not self.setup.times.equal:
            notes.append(
                "The closed form is for equal stages with the same work in all, so it differs from the simulation."
            )
        if not self.times_are_given:
            notes.append(
                "No times were given: forward, gradient of the input and gradient of the weights are taken as equal."
            )
        if self.simulated is None:
            notes.append("Too much to simulate: the closed form alone.")
        elif self.simulated.timeline.section != self.simulated.timeline.period:
            section = _percent(self.simulated.timeline.fraction_of_total)
            notes.append(
                "A stage that is done may begin its next step. From the first forward to the end of the last backward "
                f"on any stage, {section:.2f} % is idle."
            )
        if self.setup.microbatches < self.setup.devices:
            notes.append(
                f"{self.setup.microbatches} micro-batches cannot fill {self.setup.devices} stages: "
                "some stage is idle all the time."
            )
        return notes

    def _us(self, time_ns: Fraction | None) -> float | None:
        return None if time_ns is None or not self.times_are_given else float(time_ns / NS_PER_US)

    def _ms(self, time_ns: Fraction | None) -> float | None:
        return None if time_ns is None or not self.times_are_given else float(time_ns / 10**6)


def alternatives_data(alternatives: Sequence[Alternative]) -> Json:
    """What else would give, for JSON."""
    return [
        {
            "change": one.change,
            "fraction_of_total": float(one.fraction_of_total),
            "fraction_of_ideal": float(of_ideal(one.fraction_of_total)),
            "speedup": float(one.speedup),
            "peak_microbatches_in_flight": _float(one.peak_in_flight),
        }
        for one in alternatives
    ]


def alternatives_section(alternatives: Sequence[Alternative], *assumptions: str) -> Section:
    """What else would give, for people."""
    columns = (
        Column("Change"),
        Column("Bubble of the total (%)", 2),
        Column("Useful work a second", 3),
        Column("Micro-batches in memory"),
    )
    rows = tuple(
        (one.change, _percent(one.fraction_of_total), float(one.speedup), _float(one.peak_in_flight))
        for one in alternatives
    )
    notes = (
        "Each change by itself, with the same times a micro-batch. More micro-batches of the same size make the "
        "global batch larger.",
        "Micro-batches in memory: whose activations the fullest stage holds at once, in stages' shares of the "
        "model; DualPipe also holds the weights twice.",
        *assumptions,
    )
    return Section("What would change it", columns, rows, notes=notes)


def _target_data(target: Target) -> Json:
    return {
        "tflops": float(target.tflops),
        "target_tflops": float(target.wanted),
        "limit_tflops": float(target.limit),
        "microbatches": target.microbatches,
    }


def _target_section(setup: Setup, target: Target) -> Section:
    columns = (
        Column("Measured TFLOPs per GPU"),
        Column("At micro-batches"),
        Column("Wanted TFLOPs per GPU"),
        Column("Micro-batches needed"),
        Column("TFLOPs without any bubble"),
    )
    wanted, limit, now = float(target.wanted), float(target.limit), float(target.tflops)
    notes = [
        "Micro-batches are PP chunks or gradient accumulation steps. Assumes that a micro-batch keeps its size and its "
        "time, and that a step is its passes: no optimizer, no input."
    ]
    if target.microbatches is None:
        notes.append(f"{wanted:g} cannot be reached by more micro-batches: make a micro-batch faster.")
    row = (now, setup.microbatches, wanted, target.microbatches, limit)
    return Section("Micro-batches until a throughput", columns, (row,), notes=tuple(notes))


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def _percent(value: Fraction | None) -> float | None:
    return None if value is None else float(100 * value)
