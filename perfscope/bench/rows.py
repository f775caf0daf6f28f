"""The rows of a benchmark: repeated trainings summed up, and compared with each other.

Trainings of a round ran one after the other, so two rows are compared round by round: the mean logarithm of their
ratios, with Student's interval at 95 %. Rows differ where it excludes 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import exp, fsum, log, sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any

from scipy.special import stdtrit

from perfscope.bench.settings import Variant, read_variant
from perfscope.constants import NS_PER_S
from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.measures.statistics import CONFIDENCE
from perfscope.report import Json

SCHEMA = "perfscope/bench-measurement/1"


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

    @property
    def name(self) -> str:
        """The name of its files and of its run."""
        return f"{self.variant.key}.{self.repetition}"

    def data(self) -> dict[str, Json]:
        """The measurement for JSON."""
        return {"schema": SCHEMA, **asdict(self)}

    def write(self, folder: Path) -> None:
        """Write it into a folder, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{self.name}.json", json.dumps(self.data(), indent=1).encode())


def read_measurements(folder: Path) -> list[Measurement]:
    """The measurements of a folder; SourceError where a file is none."""
    return [read_measurement(path) for path in sorted(folder.glob("*.json"))]


def read_measurement(path: Path) -> Measurement:
    """Read one measurement; SourceError where the file is none."""
    try:
        values = json.loads(path.read_bytes())
        is_ours = isinstance(values, dict) and values.get("schema") == SCHEMA
    except ValueError:
        is_ours = False
    if not is_ours:
        raise SourceError(path, "is not a measurement of `perfscope bench`")
    names = {column.name for column in fields(Measurement)}
    chosen: dict[str, Any] = {name: value for name, value in values.items() if name in names}
    chosen |= {name: tuple(value) for name, value in chosen.items() if isinstance(value, list)}
    chosen["variant"] = read_variant(values["variant"])
    return Measurement(**chosen)


#: Half of the steps of a shorter training begin less than a second behind its start, which NVML's power still holds.
_SHORTEST_WITH_ENERGY_NS = 2 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Ratio:
    """Throughput of a row over that of another, with its 95 % interval; without one where there was one round."""

    value: float
    interval: tuple[float, float] | None

    @property
    def differs(self) -> bool | None:
        """Whether the rows truly differ; None where that was not tested."""
        return None if self.interval is None else not self.interval[0] <= 1 <= self.interval[1]

    def data(self) -> dict[str, Json]:
        """The ratio for JSON."""
        return {
            "ratio": self.value,
            "interval": list(self.interval) if self.interval else None,
            "differs": self.differs,
        }


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One variant, its measured trainings by number, and why there is none or why some failed."""

    variant: Variant
    trainings: tuple[Measurement, ...]
    reason: str | None

    @property
    def step_s(self) -> float | None:
        """Median over the trainings of each training's step time."""
        return median(map(_step_s, self.trainings)) if self.trainings else None

    @property
    def samples_per_s(self) -> float | None:
        """Throughput of all devices."""
        samples = self.trainings[0].samples if self.trainings else None
        return samples / self.step_s if samples and self.step_s else None

    @property
    def tokens_per_s(self) -> float | None:
        """Throughput in tokens; None where samples are no sequences."""
        tokens = self.trainings[0].tokens if self.trainings else None
        return tokens / self.step_s if tokens and self.step_s else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the throughput over the trainings; None with one."""
        samples = self.trainings[0].samples if self.trainings[1:] else None
        if not samples:
            return None
        low, high = _student([log(_step_s(training)) for training in self.trainings])
        return samples / exp(high), samples / exp(low)

    @property
    def memory_bytes(self) -> tuple[int, ...]:
        """The peak of each device, over the trainings."""
        columns = zip(*(training.memory_bytes for training in self.trainings), strict=False)
        return tuple(max(column) for column in columns)

    @property
    def largest_memory_bytes(self) -> int | None:
        """The peak of the fullest device."""
        return max(self.memory_bytes, default=None)

    def mean(self, name: str) -> float | None:
        """The mean of a figure over the trainings that have it."""
        values = [value for training in self.trainings if (value := getattr(training, name)) is not None]
        return fmean(values) if values else None

    def mean_of(self, name: str, part: str) -> float | None:
        """The mean of a figure among several, such as a convention's TFLOPs."""
        values = [getattr(training, name)[part] for training in self.trainings if part in getattr(training, name)]
        return fmean(values) if values else None

    @property
    def step_j(self) -> float | None:
        """Energy of a step of all GPUs, over the trainings that last long enough."""
        values = [
            training.step_j
            for training in self.trainings
            if training.step_j is not None and sum(training.step_ns) >= _SHORTEST_WITH_ENERGY_NS
        ]
        return fmean(values) if values else None

    @property
    def joules_per_sample(self) -> float | None:
        """Energy of a sample."""
        joules, samples = self.step_j, self.trainings[0].samples if self.trainings else None
        return joules / samples if joules is not None and samples else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Doubts about the trainings, each once, and why some failed."""
        notes = [note for training in self.trainings for note in training.notes]
        return tuple(dict.fromkeys([*notes, *([self.reason] if self.reason else [])]))


def sum_up(measurements: Sequence[Measurement], variants: Sequence[Variant] = ()) -> tuple[BenchRow, ...]:
    """The rows, in the order of the variants and then of the measurements."""
    order = dict.fromkeys([*variants, *(measurement.variant for measurement in measurements)])
    by_variant: dict[Variant, list[Measurement]] = {variant: [] for variant in order}
    for measurement in measurements:
        by_variant[measurement.variant].append(measurement)
    return tuple(_sum_up_row(variant, members) for variant, members in by_variant.items() if members)


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
    value = row.samples_per_s / other.samples_per_s
    rounds = {training.repetition: training for training in other.trainings}
    logs = [
        log(_speed(training) / _speed(rounds[training.repetition]))
        for training in row.trainings
        if training.repetition in rounds
    ]
    if row is other or not logs[1:]:
        return Ratio(value, None)
    low, high = _student(logs)
    return Ratio(value, (exp(low), exp(high)))


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
