"""The rows of a benchmark: repeated trainings summed up, and compared with each other.

Trainings of a round ran one after the other, so two rows are compared round by round: the mean logarithm of their
ratios, with Student's interval at 95 %. Rows differ where it excludes 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, fsum, log, sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Literal

import msgspec
from scipy.special import stdtrit

from perfscope.bench.settings import Variant
from perfscope.constants import NS_PER_S
from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.measures.statistics import CONFIDENCE
from perfscope.result import Doc, Figures, figure, to_object


@dataclass(frozen=True, slots=True)
class Measurement:
    """A training that ended, without warm-up, the profiled step and its neighbours; what was not measured is None.

    ``memory_bytes`` is the peak of tensors on each device, or of each process on CPUs. ``last_loss`` and ``accuracy``
    are of the last quarter of the steps. ``step_j`` is of all GPUs, ``shares`` of the profiled step. ``tflops`` is per
    GPU, by convention; ``products`` counts the model's own matrix products and convolutions.
    """

    variant: Variant
    repetition: int
    reason: str | None = None
    step_ns: tuple[int, ...] = ()
    samples: int | None = None
    tokens: int | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    losses: tuple[float, ...] = ()
    accuracy: float | None = None
    memory_bytes: tuple[int, ...] = ()
    util_percent: float | None = None
    step_j: float | None = None
    overlap: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    bubble: float | None = None
    tflops: Mapping[str, float] = field(default_factory=dict)
    mfu: float | None = None
    save_ns: int | None = None
    save_bytes: int | None = None
    notes: tuple[str, ...] = ()
    schema: Literal["perfscope/bench-measurement/1"] = "perfscope/bench-measurement/1"

    @property
    def name(self) -> str:
        """The name of its files and of its run."""
        return f"{self.variant.key}.{self.repetition}"

    def write(self, folder: Path) -> None:
        """Write it into a folder, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{self.name}.json", json.dumps(to_object(self), indent=1).encode())


def read_measurement(path: Path) -> Measurement:
    """Read one measurement; SourceError where the file is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Measurement)
    except msgspec.MsgspecError:
        raise SourceError(path, "is not a measurement of `perfscope bench`") from None


#: Half of the steps of a shorter training begin less than a second behind its start, which NVML's power still holds.
_SHORTEST_WITH_ENERGY_NS = 2 * NS_PER_S


class Ratio(Figures, frozen=True):
    """Throughput of a row over that of another; without an interval where there was one round."""

    ratio: Annotated[float, Doc("How many times as fast.")]
    interval: Annotated[tuple[float, float] | None, Doc("Its 95 % interval.")]

    @figure
    def differs(self) -> bool | None:
        """Whether the rows truly differ; None where that was not tested."""
        return None if self.interval is None else not self.interval[0] <= 1 <= self.interval[1]


def _mean(name: str) -> figure:
    """The mean of a figure over the trainings that have it."""
    return figure(lambda row: row.mean(name))


class BenchRow(Figures, frozen=True):
    """One variant, its measured trainings by number, and the first row that has some; None for that row itself."""

    INLINE = ("variant",)
    variant: Variant
    measurements: Annotated[tuple[Measurement, ...], Doc("The trainings that were measured.")]
    reason: Annotated[str | None, Doc("Why there is none, or why some failed.")]
    first: BenchRow | None = None

    util_percent, accuracy = _mean("util_percent"), _mean("accuracy")
    first_loss, last_loss = _mean("first_loss"), _mean("last_loss")

    @figure
    def name(self) -> str:
        """The name of the variant in files."""
        return self.variant.key

    @figure
    def title(self) -> str:
        """What the strategy is called."""
        return self.variant.facts.title

    @figure
    def trainings(self) -> int:
        """How many trainings were measured."""
        return len(self.measurements)

    @figure
    def step_s(self) -> float | None:
        """Median over the trainings of each training's step time."""
        return median(map(_step_s, self.measurements)) if self.measurements else None

    @figure
    def samples_per_s(self) -> float | None:
        """Throughput of all devices."""
        return self._in_a_step("samples") / self.step_s if self.step_s else None

    @figure
    def tokens_per_s(self) -> float | None:
        """Throughput in tokens; None where samples are no sequences."""
        tokens = self._in_a_step("tokens")
        return tokens / self.step_s if tokens and self.step_s else None

    @figure
    def samples_per_s_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the throughput over the trainings; None with one."""
        if not self.measurements[1:]:
            return None
        samples = self._in_a_step("samples")
        low, high = _student([log(_step_s(training)) for training in self.measurements])
        return samples / exp(high), samples / exp(low)

    @figure
    def against_first(self) -> Ratio | None:
        """The throughput over that of the first row."""
        return compare_rows(self, self.first or self)

    @figure
    def efficiency(self) -> float | None:
        """The throughput of a device over that of a device of the first row."""
        first = self.first or self
        if self.samples_per_s is None or not first.samples_per_s:
            return None
        return self.samples_per_s / self.variant.nproc / (first.samples_per_s / first.variant.nproc)

    @figure
    def memory_bytes(self) -> tuple[int, ...]:
        """The peak of each device, over the trainings."""
        columns = zip(*(training.memory_bytes for training in self.measurements), strict=False)
        return tuple(max(column) for column in columns)

    @figure
    def memory_change(self) -> float | None:
        """By how much the peak of the fullest device is above that of the first row."""
        if self.first is None or not self.memory_bytes or not self.first.memory_bytes:
            return None
        return max(self.memory_bytes) / max(self.first.memory_bytes) - 1

    @figure
    def joules_per_sample(self) -> float | None:
        """Energy of a sample on all GPUs, over the trainings that last long enough."""
        joules = [
            training.step_j
            for training in self.measurements
            if training.step_j is not None and sum(training.step_ns) >= _SHORTEST_WITH_ENERGY_NS
        ]
        return fmean(joules) / self._in_a_step("samples") if joules else None

    @figure
    def notes(self) -> tuple[str, ...]:
        """Doubts about the trainings, each once, and why some failed."""
        notes = [note for training in self.measurements for note in training.notes]
        return tuple(dict.fromkeys([*notes, *([self.reason] if self.reason else [])]))

    def mean(self, name: str, part: str = "") -> float | None:
        """The mean of a figure over the trainings that have it, or of a part of one, such as a convention's TFLOPs."""
        figures = [getattr(training, name) for training in self.measurements]
        values = [value for each in figures if (value := each.get(part) if part else each) is not None]
        return fmean(values) if values else None

    def _in_a_step(self, name: str) -> int:
        return next((getattr(training, name) or 0 for training in self.measurements), 0)


def sum_up(measurements: Sequence[Measurement], variants: Sequence[Variant] = ()) -> tuple[BenchRow, ...]:
    """The rows, in the order of the variants and then of the measurements."""
    order = dict.fromkeys([*variants, *(measurement.variant for measurement in measurements)])
    by_variant: dict[Variant, list[Measurement]] = {variant: [] for variant in order}
    for measurement in measurements:
        by_variant[measurement.variant].append(measurement)
    rows = [_sum_up_row(variant, members) for variant, members in by_variant.items() if members]
    first = next((row for row in rows if row.measurements), None)
    return tuple(row if row is first else msgspec.structs.replace(row, first=first) for row in rows)


def _sum_up_row(variant: Variant, members: Sequence[Measurement]) -> BenchRow:
    trainings = sorted((member for member in members if member.reason is None), key=lambda member: member.repetition)
    reasons = [member.reason for member in members if member.reason is not None]
    reason = reasons[0] if reasons else None
    if reason is not None and trainings:
        reason = f"{len(reasons)} of {len(members)} trainings {reason}"
    return BenchRow(variant, tuple(trainings), reason)


def compare_rows(row: BenchRow, other: BenchRow) -> Ratio | None:
    """How many times as fast a row is as another; None where either was not measured."""
    if row.samples_per_s is None or other.samples_per_s is None:
        return None
    ratio = row.samples_per_s / other.samples_per_s
    rounds = {training.repetition: training for training in other.measurements}
    logs = [
        log(_speed(training) / _speed(rounds[training.repetition]))
        for training in row.measurements
        if training.repetition in rounds
    ]
    if row is other or not logs[1:]:
        return Ratio(ratio, None)
    low, high = _student(logs)
    return Ratio(ratio, (exp(low), exp(high)))


def _speed(training: Measurement) -> float:
    return (training.samples or 0) / _step_s(training)


def _step_s(training: Measurement) -> float:
    return fmean(training.step_ns) / NS_PER_S


def _student(values: Sequence[float]) -> tuple[float, float]:
    mean = fmean(values)
    degrees = len(values) - 1
    deviation = sqrt(fsum((value - mean) ** 2 for value in values) / degrees)
    reach = float(stdtrit(degrees, (1 + CONFIDENCE) / 2)) * deviation / sqrt(len(values))
    return mean - reach, mean + reach
