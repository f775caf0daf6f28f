"""How throughput grows with the number of GPUs.

Runs of the same set-up (model, precision, sequence length, ZeRO stage) form series of two kinds, never mixed. The batch
per GPU stays the same in a *weak* series, the global batch in a *strong* one. The speed-up is the median throughput
over the baseline's. The efficiency is the throughput per GPU over the baseline's. The baseline, the fewest GPUs of the
series, is reported, because the figures depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import mean, median

from perfscope.analyzers.scaling.fits import Configuration, Fit, fit_laws
from perfscope.analyzers.shared.statistics import count_values
from perfscope.constants import MIB
from perfscope.report import Json, percent
from perfscope.tables.scaling import ClusterSize, ScalingRun

#: Different numbers of GPUs that make a series.
_LEAST_SIZES = 2
#: Efficiency so far above 1 is more than the runs' own spread.
_SUPERLINEAR = 0.02


class ScalingKind(StrEnum):
    """Weak scaling keeps the batch per GPU, strong scaling the global batch."""

    WEAK = "weak"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Setup:
    """What runs of a series have in common; None is unknown."""

    model: str
    precision: str | None
    seq_len: int | None
    zero_stage: int | None

    @classmethod
    def of(cls, run: ScalingRun) -> Setup:
        """The set-up of a run."""
        return cls(run.model, run.precision, run.seq_len, run.zero_stage)

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
    """The runs on one cluster size.

    Attributes:
        cluster: Nodes and GPUs.
        batch: Global batch size.
        speeds: Throughput of each run, in samples/s.
        speedup: Median over the baseline's median.
        efficiency: Median per GPU over the baseline's median per GPU.
    """

    cluster: ClusterSize
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
            "case": str(self.cluster),
            "nodes": self.cluster.nodes,
            "gpus_per_node": self.cluster.gpus_per_node,
            "gpus": self.cluster.gpus,
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
        kind: Weak or strong scaling.
        setup: The set-up of all runs.
        constant: The batch per GPU (weak) or the global batch (strong); None where the batch is unknown.
        points: By number of GPUs; the first is the baseline.
        fits: Scaling laws.
    """

    kind: ScalingKind
    setup: Setup
    constant: float | None
    points: tuple[Point, ...]
    fits: tuple[Fit, ...]

    @property
    def title(self) -> str:
        """The heading of the series."""
        batch = "batch per GPU" if self.kind is ScalingKind.WEAK else "global batch"
        size = "unknown" if self.constant is None else f"{self.constant:g}"
        return f"{self.setup}: {self.kind} scaling, {batch} {size}"

    def includes(self, run: ScalingRun) -> bool:
        """Whether a run belongs to the series."""
        return self.setup == Setup.of(run) and self.constant == _constant_batch(run, self.kind)

    def data(self) -> dict[str, Json]:
        """The series for JSON."""
        return {
            "kind": str(self.kind),
            "model": self.setup.model,
            "precision": self.setup.precision,
            "seq_len": self.setup.seq_len,
            "zero_stage": self.setup.zero_stage,
            "constant_batch": self.constant,
            "baseline": str(self.points[0].cluster),
            "points": [point.data() for point in self.points],
            "fits": {fit.law: fit.data() for fit in self.fits},
        }


@dataclass(frozen=True, slots=True)
class Scaling:
    """The result of a scaling study.

    Attributes:
        runs: All runs.
        series: Weak scaling first.
        notes: What a reader must know.
    """

    runs: tuple[ScalingRun, ...]
    series: tuple[Series, ...]
    notes: tuple[str, ...]

    def results(self) -> dict[str, Json]:
        """Every configuration under its model, with the keys of DLPerf's scripts and more."""
        results: dict[str, dict[str, Json]] = {}
        for series in self.series:
            configurations = results.setdefault(self._key(series), {})
            for point in series.points:
                per_gpu = None if point.batch is None else point.batch / point.cluster.gpus
                size = int(per_gpu) if per_gpu is not None and per_gpu == int(per_gpu) else per_gpu
                configurations[str(point.cluster)] = {"batch_size_per_device": size, **point.data()}
        return dict(results)

    def _key(self, series: Series) -> str:
        if sum(candidate.setup.model == series.setup.model for candidate in self.series) == 1:
            return series.setup.model
        size = "" if series.constant is None else f", batch {series.constant:g}"
        return f"{series.setup}{size}, {series.kind}"


def study_scaling(runs: Sequence[ScalingRun], predict: Sequence[int] = ()) -> Scaling:
    """Group runs into series and fit scaling laws to them.

    Args:
        runs: All runs; those without a throughput make no point.
        predict: Numbers of GPUs to predict; by default twice the largest.
    """
    series = [*_group_runs(runs, ScalingKind.WEAK, predict), *_group_runs(runs, ScalingKind.STRONG, predict)]
    return Scaling(tuple(runs), tuple(series), tuple(_notes(runs, series)))


def _group_runs(runs: Sequence[ScalingRun], kind: ScalingKind, predict: Sequence[int]) -> Iterator[Series]:
    groups: dict[tuple[Setup, float | None], list[ScalingRun]] = {}
    for run in runs:
        if run.samples_per_s is not None and (run.batch is not None or kind is ScalingKind.WEAK):
            groups.setdefault((Setup.of(run), _constant_batch(run, kind)), []).append(run)
    for (setup, constant), members in groups.items():
        if len({run.cluster.gpus for run in members}) >= _LEAST_SIZES:
            points = tuple(_average_runs(members))
            configurations = [Configuration(point.cluster.gpus, point.speeds, point.cluster.nodes) for point in points]
            yield Series(kind, setup, constant, points, fit_laws(configurations, predict))


def _constant_batch(run: ScalingRun, kind: ScalingKind) -> float | None:
    return run.batch_per_gpu if kind is ScalingKind.WEAK else run.batch


def _average_runs(runs: Sequence[ScalingRun]) -> Iterator[Point]:
    clusters = sorted({run.cluster for run in runs}, key=lambda cluster: (cluster.gpus, cluster.nodes))
    speeds = {
        cluster: tuple(run.samples_per_s or 0.0 for run in runs if run.cluster == cluster) for cluster in clusters
    }
    baseline = clusters[0]
    baseline_median = count_values(speeds[baseline]).median() or 0.0
    for cluster in clusters:
        median = count_values(speeds[cluster]).median() or 0.0
        speedup = median / baseline_median
        batch = next((run.batch for run in runs if run.cluster == cluster), None)
        yield Point(cluster, batch, speeds[cluster], speedup, speedup * baseline.gpus / cluster.gpus)


def _notes(runs: Sequence[ScalingRun], all_series: Sequence[Series]) -> Iterator[str]:
    for series in all_series:
        baseline = series.points[0].cluster
        if baseline.gpus > 1:
            yield f"{series.title}: the baseline of speed-up and efficiency is {baseline}, not one GPU"
        for point in series.points:
            if point.efficiency > 1 + _SUPERLINEAR:
                share = percent(point.efficiency)
                yield (
                    f"{series.title}: {point.cluster} is superlinear, with {share:.1f} % of the throughput per GPU of "
                    f"{baseline}. This can be true (less memory per GPU, a better batch), but check that both runs did "
                    "the same work, and that the baseline was not disturbed"
                )
        if any(len(point.speeds) == 1 for point in series.points):
            yield f"{series.title}: some points are single runs, without a spread"
    for run in runs:
        yield from (f"{run.path}: {note}" for note in run.notes)
        if run.samples_per_s is None:
            yield f"{run.path}: no throughput{' (out of memory)' if run.out_of_memory else ''}, so no point"
    setups = {Setup.of(run) for run in runs}
    if len(setups) > 1:
        yield f"{len(setups)} set-ups differ in model, precision, sequence length or ZeRO stage and are not mixed"
    unmatched = [
        run for run in runs if run.samples_per_s is not None and not any(series.includes(run) for series in all_series)
    ]
    if unmatched:
        yield (
            f"{len(unmatched)} runs share neither their batch per GPU nor their global batch with a run on a different "
            f"number of GPUs, so they are in no series: {', '.join(run.path for run in unmatched[:3])}"
        )


@dataclass(frozen=True, slots=True)
class ZeroStage:
    """One ZeRO stage of one set-up.

    Attributes:
        name: The set-up as DLPerf writes it.
        model: The trained model.
        stage: The ZeRO stage.
        memory_bytes: Peak of memory in use on a GPU; absent without samples.
        util_percent: Mean utilisation; absent without samples.
        samples_per_s: Median throughput; absent without a successful run.
        memory_change, samples_change: Change against stage 0, as a fraction; absent where either value is.
        memory_saved_bytes: Memory less than stage 0; absent where either value is.
    """

    name: str
    model: str
    stage: int
    memory_bytes: int | None
    util_percent: float | None
    samples_per_s: float | None
    memory_change: float | None
    memory_saved_bytes: int | None
    samples_change: float | None

    def data(self) -> dict[str, Json]:
        """The row for JSON."""
        return {
            "xn_xg_xdp_xmp_xbs": self.name,
            "model": self.model,
            "zero_stage": self.stage,
            "gpu_mem_mib": None if self.memory_bytes is None else self.memory_bytes / MIB,
            "gpu_mem_change": self.memory_change,
            "gpu_mem_saved_mib": None if self.memory_saved_bytes is None else self.memory_saved_bytes / MIB,
            "gpu_util_percent": self.util_percent,
            "samples_per_s": self.samples_per_s,
            "samples_per_s_change": self.samples_change,
        }


def compare_zero_stages(runs: Sequence[ScalingRun]) -> tuple[ZeroStage, ...]:
    """The stages of every set-up that was run with more than one stage."""
    groups: dict[tuple[str, str, str | None, int | None], dict[int, list[ScalingRun]]] = {}
    for run in runs:
        if run.zero_stage is not None:
            key = (run.model, run.name, run.precision, run.seq_len)
            groups.setdefault(key, {}).setdefault(run.zero_stage, []).append(run)
    return tuple(row for stages in groups.values() if len(stages) > 1 for row in _compare_stages(stages))


def _compare_stages(stages: dict[int, list[ScalingRun]]) -> Iterator[ZeroStage]:
    base_memory, _, base_speed = _summarize_stage(stages[0]) if 0 in stages else (None, None, None)
    for stage in sorted(stages):
        memory, util, speed = _summarize_stage(stages[stage])
        yield ZeroStage(
            name=stages[stage][0].name,
            model=stages[stage][0].model,
            stage=stage,
            memory_bytes=memory,
            util_percent=util,
            samples_per_s=speed,
            memory_change=_relative_change(memory, base_memory) if stage else None,
            memory_saved_bytes=_saving(memory, base_memory) if stage else None,
            samples_change=_relative_change(speed, base_speed) if stage else None,
        )


def _summarize_stage(runs: Sequence[ScalingRun]) -> tuple[int | None, float | None, float | None]:
    devices = [run.device for run in runs if run.device is not None]
    utilisation = [device.util_percent for device in devices if device.util_percent is not None]
    speeds = [run.samples_per_s for run in runs if run.samples_per_s is not None]
    return (
        max((device.memory_used_bytes for device in devices), default=None),
        mean(utilisation) if utilisation else None,
        median(speeds) if speeds else None,
    )


def _relative_change(value: float | None, base: float | None) -> float | None:
    return value / base - 1 if value is not None and base else None


def _saving(memory: int | None, base_memory: int | None) -> int | None:
    return base_memory - memory if base_memory is not None and memory is not None else None
