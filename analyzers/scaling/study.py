"""How throughput grows with the number of GPUs.

Runs of the same set-up (model, precision, sequence length, ZeRO stage) form series of two kinds, never mixed. The batch
per GPU stays the same in a *weak* series, the global batch in a *strong* one. The speed-up is the median throughput
over the baseline's. The efficiency is the throughput per GPU over the baseline's. The baseline, the fewest GPUs of the
series, is reported, because the figures depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, NamedTuple

import numpy as np

from perfscope.analyzers.scaling.dlperf import ProtocolResult, Speed
from perfscope.analyzers.scaling.fits import USUAL_ERROR, Configuration, Fit, fit_law
from perfscope.charts.grammar import Chart, Dots, Line, Scale, Values
from perfscope.charts.palette import SERIES, Colour
from perfscope.measures.statistics import count_values
from perfscope.report import Cell, Section, percent
from perfscope.result import PERCENT, Column, Doc, Figures, Result, Table
from perfscope.tables.scaling import ClusterSize, ScalingRun

_FOUR_DIGITS = 10_000
_LAW_NAMES = {"doubling": "Loss per doubling", "amdahl": "Amdahl"}


class ScalingKind(StrEnum):
    """Weak scaling keeps the batch per GPU, strong scaling the global batch."""

    WEAK = "weak"
    STRONG = "strong"


class StudySetup(NamedTuple):
    """What runs of a series have in common; None is unknown."""

    model: str
    precision: str | None
    seq_len: int | None
    zero_stage: int | None

    @classmethod
    def of(cls, run: ScalingRun) -> StudySetup:
        """The set-up of a run."""
        return cls(run.model, run.precision, run.seq_len, run.zero_stage)

    def __str__(self) -> str:
        stage = f"ZeRO {self.zero_stage}" if self.zero_stage is not None else None
        parts = (self.model, self.precision, f"sequence {self.seq_len}" if self.seq_len else None, stage)
        return ", ".join(part for part in parts if part)


class Point(Figures, frozen=True):
    """The runs on one cluster size."""

    cluster: ClusterSize
    speeds: tuple[float, ...]
    case: Annotated[str, Doc("Nodes and GPUs, as `4n8g`, or `32 GPUs`.")]
    nodes: Annotated[int | None, Doc("Nodes; null where a table does not state them.")]
    gpus_per_node: Annotated[int | None, Doc("GPUs of a node.")]
    gpus: Annotated[int, Doc("GPUs.")]
    global_batch_size: Annotated[int | None, Doc("Global batch.")]
    runs: Annotated[int, Doc("Runs.")]
    average_speed: Annotated[float, Doc("Mean throughput of the runs, in the unit of the series.")]
    median_speed: Annotated[float, Doc("Median throughput of the runs.")]
    median_interval: Annotated[tuple[float, float] | None, Doc("95 % interval of the median.")]
    speedup: Annotated[float, Doc("Median over the baseline's median.")]
    efficiency: Annotated[float, Doc("Median per GPU over the baseline's median per GPU.")]


class ScalingSeries(Figures, frozen=True):
    """One set-up over several numbers of GPUs."""

    setup: StudySetup
    kind: Annotated[ScalingKind, Doc("`weak` or `strong`.")]
    model: Annotated[str, Doc("The trained model.")]
    precision: Annotated[str | None, Doc("Precision.")]
    seq_len: Annotated[int | None, Doc("Tokens in a sequence.")]
    zero_stage: Annotated[int | None, Doc("ZeRO stage.")]
    constant_batch: Annotated[float | None, Doc("The batch per GPU (weak) or the global batch (strong).")]
    unit: Annotated[str, Doc("`samples/s`, or `tokens/s` of a table.")]
    baseline: Annotated[str, Doc("Nodes and GPUs of the baseline.")]
    points: Annotated[tuple[Point, ...], Doc("By number of GPUs; the first is the baseline.")]
    fits: Annotated[Mapping[str, Fit], Doc("Scaling laws by name.")]

    @property
    def title(self) -> str:
        """The heading of the series."""
        batch = "batch per GPU" if self.kind is ScalingKind.WEAK else "global batch"
        size = "unknown" if self.constant_batch is None else f"{self.constant_batch:g}"
        return f"{self.setup}: {self.kind} scaling, {batch} {size}"


class RunOfStudy(Figures, frozen=True):
    """One run."""

    path: Annotated[str, Doc("Its log or folder.")]
    case: Annotated[str, Doc("Nodes and GPUs.")]
    model: Annotated[str, Doc("The trained model.")]
    global_batch_size: Annotated[int | None, Doc("Global batch.")]
    batch_size_per_device: Annotated[float | None, Doc("Batch per GPU.")]
    zero_stage: Annotated[int | None, Doc("ZeRO stage.")]
    samples_per_s: Annotated[float | None, Doc("Throughput.")]
    oom: Annotated[bool, Doc("It ran out of memory.")]


def _points(series: ScalingSeries) -> Section:
    columns = (
        Column("Nodes", "nodes"),
        Column("GPUs", "gpus"),
        Column("Global batch", "global_batch_size"),
        Column("Runs", "runs"),
        Column(series.unit.capitalize(), "median_speed", decimals=2),
        Column("95 % interval", lambda point: _interval(point.median_interval, 5)),
        Column("Speed-up", "speedup", decimals=2),
        Column("Efficiency (%)", "efficiency", PERCENT),
    )
    note = f"Baseline {series.baseline}; {series.unit} is the median of the runs."
    return Table(series.title, "points", columns).section(series.points, (note,))


_LAWS = Table(
    "Scaling laws",
    "series",
    (
        Column("Series", lambda item: item[0]),
        Column("Law", lambda item: _LAW_NAMES[item[1].law]),
        Column("Parameters", lambda item: _parameters(item[1])),
        Column("Error (%)", lambda item: percent(item[1].relative_error), decimals=2),
        Column("Prediction", lambda item: _predictions(item[1])),
    ),
)
_SPEEDS = Table(
    "Speed",
    "results",
    (
        Column("Model", lambda item: item[0]),
        Column("node_num", lambda item: item[1].cluster.nodes),
        Column("gpu_num", lambda item: item[1].cluster.gpus),
        Column("batch_size_per_device", lambda item: item[1].batch_size_per_device),
        Column("runs", lambda item: len(item[1].runs)),
        Column("average_speed", lambda item: item[1].average_speed, decimals=2),
        Column("samples/s", lambda item: item[1].median_speed, decimals=2),
        Column("speedup", lambda item: item[1].speedup, decimals=2),
        Column(
            "efficiency (%)",
            lambda item: None if item[1].speedup is None else percent(item[1].speedup / item[1].cluster.gpus),
        ),
    ),
)


class Scaling(Result, frozen=True, kw_only=True):
    """The result of a scaling study; by the rules of a published benchmark where it has a protocol."""

    schema: Annotated[str, Doc("The version of these keys.")] = "perfscope/scaling/1"
    protocol: Annotated[str | None, Doc("The benchmark whose rules are applied.")] = None
    results: Annotated[
        Mapping[str, Mapping[str, Speed]],
        Doc("By a protocol: every configuration under its model, with the keys of DLPerf's scripts."),
    ]
    series: Annotated[tuple[ScalingSeries, ...], Doc("Series, weak scaling first.")]
    weak: Annotated[tuple[ScalingSeries, ...], Doc("Those of weak scaling.")]
    strong: Annotated[tuple[ScalingSeries, ...], Doc("Those of strong scaling.")]
    runs: Annotated[tuple[RunOfStudy, ...], Doc("All runs.")]
    notes: Annotated[tuple[str, ...], Doc("What a reader must know.")]

    def sections(self) -> tuple[Section, ...]:
        """A table for each series, or the benchmark's own; then laws."""
        if self.protocol is not None:
            note = "samples/s is the median of the runs; each run is the mean over iterations 101 to 200."
            speeds = [(model, speed) for model, cases in self.results.items() for speed in cases.values()]
            return (_SPEEDS.section(speeds, (note,)), *self._laws())
        return (*map(_points, self.series), *self._laws())

    def _laws(self) -> list[Section]:
        fits = [(each.title, fit) for each in self.series for fit in each.fits.values()]
        reasons: dict[str, dict[str, None]] = {}
        for _, fit in fits:
            for prediction in fit.predictions:
                if prediction.reason is not None:
                    reasons.setdefault(f"{prediction.gpus} GPUs: {prediction.reason}", {})[_LAW_NAMES[fit.law]] = None
        notes = (
            "Least squares on relative errors of the medians; 95 % intervals by Student's t over configurations, whose "
            "repeats share their error; a prediction's interval is the one of what runs would measure.",
            *(f"Cannot tell ({', '.join(laws)}), {reason}." for reason, laws in reasons.items()),
        )
        return [_LAWS.section(fits, notes)] if fits else []

    def chart(self) -> Chart:
        """Throughput over GPUs, on logarithmic axes."""
        ticks = sorted({float(point.gpus) for series in self.series for point in series.points})
        return Chart(
            "Throughput over GPUs",
            f"Throughput of {len(self.series)} series on {len(ticks)} numbers of GPUs.",
            Values("GPUs", Scale.LOGARITHMIC, ticks=tuple(ticks)),
            Values(" and ".join(sorted({series.unit for series in self.series})), Scale.LOGARITHMIC),
            tuple(_list_marks(self.series)),
            height=340,
        )


def study_scaling(
    runs: Sequence[ScalingRun],
    predict: Sequence[int] = (),
    *,
    problems: Sequence[str] = (),
    protocol: str | None = None,
    published: ProtocolResult | None = None,
) -> Scaling:
    """Group runs into series and fit scaling laws to them; runs without a throughput make no point.

    By default twice the largest number of GPUs is predicted. ``problems`` are further notes, which come first;
    ``published`` are the results by the rules of a benchmark's ``protocol``.
    """
    weak, strong = (tuple(_group_runs(runs, kind, predict)) for kind in ScalingKind)
    series = (*weak, *strong)
    return Scaling(
        protocol=protocol,
        results={} if published is None else published.results,
        series=series,
        weak=weak,
        strong=strong,
        runs=tuple(
            RunOfStudy(
                path=run.path,
                case=str(run.cluster),
                model=run.model,
                global_batch_size=run.batch,
                batch_size_per_device=run.batch_per_gpu,
                zero_stage=run.zero_stage,
                samples_per_s=run.samples_per_s,
                oom=run.out_of_memory,
            )
            for run in runs
        ),
        notes=(*problems, *(_notes(runs, series) if published is None else published.notes)),
    )


def _group_runs(runs: Sequence[ScalingRun], kind: ScalingKind, predict: Sequence[int]) -> Iterator[ScalingSeries]:
    groups: dict[tuple[StudySetup, float | None, str], list[ScalingRun]] = {}
    for run in runs:
        if run.samples_per_s is not None and (run.batch is not None or kind is ScalingKind.WEAK):
            groups.setdefault((StudySetup.of(run), _constant_batch(run, kind), run.unit), []).append(run)
    for (setup, constant, unit), members in groups.items():
        if len({run.cluster.gpus for run in members}) > 1:
            points = tuple(_average_runs(members))
            law = "doubling" if kind is ScalingKind.WEAK else "amdahl"
            fit = fit_law(law, [Configuration(point.gpus, point.speeds, point.nodes) for point in points], predict)
            yield ScalingSeries(setup, kind, *setup, constant, unit, points[0].case, points, {law: fit})


def _constant_batch(run: ScalingRun, kind: ScalingKind) -> float | None:
    return run.batch_per_gpu if kind is ScalingKind.WEAK else run.batch


def _average_runs(runs: Sequence[ScalingRun]) -> Iterator[Point]:
    clusters = sorted({run.cluster for run in runs}, key=lambda cluster: (cluster.gpus, cluster.nodes or 0))
    baseline_median: float | None = None
    for cluster in clusters:
        members = [run for run in runs if run.cluster == cluster]
        speeds = tuple(run.samples_per_s or 0.0 for run in members)
        values = count_values(speeds)
        middle = values.median() or 0.0
        baseline_median = middle if baseline_median is None else baseline_median
        yield Point(
            cluster=cluster,
            speeds=speeds,
            case=str(cluster),
            nodes=cluster.nodes,
            gpus_per_node=cluster.gpus_per_node,
            gpus=cluster.gpus,
            global_batch_size=members[0].batch,
            runs=len(speeds),
            average_speed=sum(speeds) / len(speeds),
            median_speed=middle,
            median_interval=values.median_interval(),
            speedup=middle / baseline_median,
            efficiency=middle / baseline_median * clusters[0].gpus / cluster.gpus,
        )


def _doubts(series: ScalingSeries) -> Iterator[str]:
    if series.points[0].gpus > 1:
        yield f"the baseline of speed-up and efficiency is {series.baseline}, not one GPU"
    for point in series.points:
        if point.efficiency > 1 + 2 * USUAL_ERROR:
            yield (
                f"{point.case} is superlinear, with {percent(point.efficiency):.1f} % of the throughput per GPU of "
                f"{series.baseline}. This can be true (less memory per GPU, a better batch), but check that both runs "
                "did the same work, and that the baseline was not disturbed"
            )
    if series.kind is ScalingKind.WEAK and series.constant_batch is None:
        yield "no batch is stated; it is taken for the same on each GPU"
    if any(point.runs == 1 for point in series.points):
        yield "some points are single runs, without a spread"


def _notes(runs: Sequence[ScalingRun], all_series: Sequence[ScalingSeries]) -> Iterator[str]:
    titles: dict[str, list[str]] = {}
    for series in all_series:
        for doubt in _doubts(series):
            titles.setdefault(doubt, []).append(series.title)
    for doubt, doubted in titles.items():
        yield f"{doubted[0] if len(doubted) == 1 else f'{len(doubted)} series'}: {doubt}"
    for run in runs:
        yield from (f"{run.path}: {note}" for note in run.notes)
        if run.samples_per_s is None:
            yield f"{run.path}: no throughput{' (out of memory)' if run.out_of_memory else ''}, so no point"
    setups = {StudySetup.of(run) for run in runs}
    if len(setups) > 1:
        yield f"{len(setups)} set-ups differ in model, precision, sequence length or ZeRO stage and are not mixed"
    in_series = {(each.setup, each.kind, each.constant_batch) for each in all_series}
    unmatched = [
        run.path
        for run in runs
        if run.samples_per_s is not None
        and not any((StudySetup.of(run), kind, _constant_batch(run, kind)) in in_series for kind in ScalingKind)
    ]
    if unmatched:
        yield (
            f"{len(unmatched)} runs share neither their batch per GPU nor their global batch with a run on a different "
            f"number of GPUs, so they are in no series: {', '.join(unmatched[:3])}"
        )


def _list_marks(all_series: Sequence[ScalingSeries]) -> Iterator[Line | Dots]:
    """Measured medians, the ideal line from the baseline, and every law up to the largest prediction."""
    for index, series in enumerate(all_series):
        baseline = series.points[0]
        measured = tuple((float(point.gpus), point.median_speed) for point in series.points)
        tips = tuple(f"{point.gpus} GPUs: {point.median_speed:,.2f} {series.unit}" for point in series.points)
        shares_setup = sum(other.setup == series.setup for other in all_series) > 1
        name = series.model if len(all_series) == 1 else series.title if shares_setup else str(series.setup)
        yield Dots(name, SERIES[index % len(SERIES)], measured, tips)
        predicted = [prediction.gpus for fit in series.fits.values() for prediction in fit.predictions]
        largest = float(max([series.points[-1].gpus, *predicted]))
        ideal = (measured[0], (largest, baseline.median_speed * largest / baseline.gpus))
        yield Line("ideal", Colour.QUIET, ideal, is_dashed=True)
        gpus = np.geomspace(baseline.gpus, largest, 60)
        for offset, fit in enumerate(series.fits.values(), 1):
            if fit.reason is None:
                points = tuple(zip(gpus.tolist(), fit.throughput(gpus).tolist(), strict=True))
                yield Line(fit.law, SERIES[(index + offset) % len(SERIES)], points, is_dashed=True)


def _interval(interval: tuple[float, float] | None, digits: int = 4) -> str | None:
    return None if interval is None else f"{interval[0]:.{digits}g} to {interval[1]:.{digits}g}"


def _parameters(fit: Fit) -> str:
    if fit.parameters is None:
        return fit.reason or ""
    bounds = {name: _interval(interval) for name, interval in (fit.intervals or {}).items()}
    return ", ".join(
        f"{name} {value:.4g}" + (f" ({bounds[name]})" if name in bounds else "")
        for name, value in fit.parameters.items()
    )


def _predictions(fit: Fit) -> Cell:
    texts = []
    for prediction in fit.predictions:
        if prediction.interval is None:
            texts.append(f"{prediction.gpus} GPUs: cannot tell")
        else:
            low, high, speed = (
                f"{value:.4g}" if value < _FOUR_DIGITS else f"{value:.0f}"
                for value in (*prediction.interval, prediction.samples_per_s)
            )
            texts.append(f"{prediction.gpus} GPUs: {speed} ({low} to {high})")
    return "; ".join(texts) or None
