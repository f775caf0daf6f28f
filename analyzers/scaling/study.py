"""How throughput grows with the number of GPUs.

Runs of one set-up (model, precision, sequence length, ZeRO stage) make series of two kinds, never mixed: *weak*, where
the batch of a GPU stays the same, and *strong*, where the global batch does. In both the speed-up is the median
throughput over the baseline's, and the efficiency is throughput a GPU over the baseline's throughput a GPU; the
baseline, the fewest GPUs of the series, is named, because another one changes the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from perfscope.analyzers.scaling.fits import Fit, fit_all
from perfscope.analyzers.shared.statistics import count_values
from perfscope.report import Json
from perfscope.tables.scaling import Case, ScalingRun

_LEAST_CASES = 2


class Kind(StrEnum):
    """What stays the same while GPUs are added."""

    WEAK = "weak"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Setup:
    """What must be the same for two runs to be compared; None is unknown."""

    model: str
    precision: str | None
    seq_len: int | None
    zero_stage: int | None

    def __str__(self) -> str:
        parts = (
            self.model,
            self.precision,
            f"sequence {self.seq_len}" if self.seq_len else None,
            f"ZeRO {self.zero_stage}" if self.zero_stage is not None else None,
        )
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Point:
    """One number of nodes and GPUs.

    Attributes:
        case: Nodes and GPUs.
        batch: Global batch size.
        speeds: Samples a second of each run.
        speedup: Median over the baseline's median.
        efficiency: Median a GPU over the baseline's median a GPU.
    """

    case: Case
    batch: int | None
    speeds: tuple[float, ...]
    speedup: float
    efficiency: float

    @property
    def median(self) -> float:
        """Median throughput of the runs."""
        return count_values(self.speeds).median() or 0.0

    def data(self) -> dict[str, Json]:
        """The point for JSON."""
        interval = count_values(self.speeds).median_interval()
        return {
            "case": str(self.case),
            "nodes": self.case.nodes,
            "gpus_per_node": self.case.gpus_per_node,
            "gpus": self.case.gpus,
            "global_batch_size": self.batch,
            "runs": len(self.speeds),
            "average_speed": sum(self.speeds) / len(self.speeds),
            "median_speed": self.median,
            "median_interval": list(interval) if interval else None,
            "speedup": self.speedup,
            "efficiency": self.efficiency,
        }


@dataclass(frozen=True, slots=True)
class Series:
    """One set-up over several numbers of GPUs.

    Attributes:
        kind: What stays the same.
        setup: What was trained.
        constant: The batch of a GPU (weak) or the global batch (strong); None where the batch is unknown.
        points: By number of GPUs; the first is the baseline.
        fits: Scaling laws.
    """

    kind: Kind
    setup: Setup
    constant: float | None
    points: tuple[Point, ...]
    fits: tuple[Fit, ...]

    @property
    def title(self) -> str:
        """The series in words."""
        what = "batch of a GPU" if self.kind is Kind.WEAK else "global batch"
        size = "unknown" if self.constant is None else f"{self.constant:g}"
        return f"{self.setup}: {self.kind} scaling, {what} {size}"

    def data(self) -> dict[str, Json]:
        """The series for JSON."""
        return {
            "kind": str(self.kind),
            "model": self.setup.model,
            "precision": self.setup.precision,
            "seq_len": self.setup.seq_len,
            "zero_stage": self.setup.zero_stage,
            "constant_batch": self.constant,
            "baseline": str(self.points[0].case),
            "points": [point.data() for point in self.points],
            "fits": {fit.law: fit.data() for fit in self.fits},
        }


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a study of runs says.

    Attributes:
        runs: All of them.
        series: Weak ones first.
        notes: What a reader must know.
    """

    runs: tuple[ScalingRun, ...]
    series: tuple[Series, ...]
    notes: tuple[str, ...]

    def results(self) -> dict[str, Json]:
        """Every configuration under its model, with the keys of DLPerf's scripts and more."""
        found: dict[str, dict[str, Json]] = {}
        for series in self.series:
            cases = found.setdefault(self._key(series), {})
            for point in series.points:
                per_gpu = None if point.batch is None else point.batch / point.case.gpus
                size = int(per_gpu) if per_gpu is not None and per_gpu == int(per_gpu) else per_gpu
                cases[str(point.case)] = {"batch_size_per_device": size, **point.data()}
        return dict(found)

    def _key(self, series: Series) -> str:
        alike = [other for other in self.series if other.setup.model == series.setup.model]
        if len(alike) == 1:
            return series.setup.model
        size = "" if series.constant is None else f", batch {series.constant:g}"
        return f"{series.setup}{size}, {series.kind}"


def analyze(runs: Sequence[ScalingRun], predict: Sequence[int] = ()) -> Scaling:
    """Put runs into series and fit scaling laws to them.

    Args:
        runs: All runs; those without a throughput make no point.
        predict: Numbers of GPUs to predict; twice the largest where there is none.
    """
    series = [*_series(runs, Kind.WEAK, predict), *_series(runs, Kind.STRONG, predict)]
    return Scaling(tuple(runs), tuple(series), tuple(_notes(runs, series)))


def _series(runs: Sequence[ScalingRun], kind: Kind, predict: Sequence[int]) -> Iterator[Series]:
    groups: dict[tuple[Setup, float | None], list[ScalingRun]] = {}
    for run in runs:
        if run.samples_per_s is not None and (run.batch is not None or kind is Kind.WEAK):
            constant = run.batch_per_gpu if kind is Kind.WEAK else run.batch
            groups.setdefault((_setup(run), constant), []).append(run)
    for (setup, constant), members in groups.items():
        if len({run.case.gpus for run in members}) >= _LEAST_CASES:
            points = tuple(_points(members))
            yield Series(kind, setup, constant, points, fit_all(_observations(points), predict))


def _setup(run: ScalingRun) -> Setup:
    return Setup(run.model, run.precision, run.seq_len, run.zero_stage)


def _points(runs: Sequence[ScalingRun]) -> Iterator[Point]:
    cases = sorted({run.case for run in runs}, key=lambda case: (case.gpus, case.nodes))
    speeds = {case: tuple(run.samples_per_s or 0.0 for run in runs if run.case == case) for case in cases}
    base = cases[0]
    base_median = count_values(speeds[base]).median() or 0.0
    for case in cases:
        median = count_values(speeds[case]).median() or 0.0
        speedup = median / base_median
        batch = next((run.batch for run in runs if run.case == case), None)
        yield Point(case, batch, speeds[case], speedup, speedup * base.gpus / case.gpus)


def _observations(points: Sequence[Point]) -> list[tuple[int, float]]:
    return [(point.case.gpus, speed) for point in points for speed in point.speeds]


def _notes(runs: Sequence[ScalingRun], series: Sequence[Series]) -> Iterator[str]:
    for one in series:
        base = one.points[0].case
        if base.gpus > 1:
            yield f"{one.title}: the baseline is {base}, not one GPU; speed-up and efficiency are over it"
        if any(len(point.speeds) == 1 for point in one.points):
            yield f"{one.title}: some points are single runs, without a spread"
    for run in runs:
        yield from (f"{run.path}: {note}" for note in run.notes)
        if run.samples_per_s is None:
            yield f"{run.path}: no throughput{' (out of memory)' if run.out_of_memory else ''}, so no point"
    setups = {_setup(run) for run in runs}
    if len(setups) > 1:
        yield f"{len(setups)} set-ups differ in model, precision, sequence length or ZeRO stage and are kept apart"
    alone = [run for run in runs if run.samples_per_s is not None and not any(_holds(one, run) for one in series)]
    if alone:
        yield (
            f"{len(alone)} runs share neither their batch of a GPU nor their global batch with a run on another number "
            f"of GPUs, so they are in no series: {', '.join(run.path for run in alone[:3])}"
        )


def _holds(series: Series, run: ScalingRun) -> bool:
    constant = run.batch_per_gpu if series.kind is Kind.WEAK else run.batch
    return series.setup == _setup(run) and series.constant == constant
