"""How strategies scale over numbers of devices: series, laws, and the largest number predicted from the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from perfscope.analyzers.scaling.sections import law_sections, series_sections
from perfscope.analyzers.scaling.study import Scaling, ScalingKind, study_scaling
from perfscope.bench.rows import Row
from perfscope.constants import NS_PER_S
from perfscope.report import Cell, Column, Section, percent
from perfscope.tables.scaling import ClusterSize, ScalingRun

_FEWEST_SIZES = 2
_SINGLE = "single"


def list_scaling_runs(rows: Sequence[Row]) -> list[ScalingRun]:
    """Every training as a run of a scaling study, a model for each strategy and its options.

    A strategy that was not measured on one device starts from the row of one device.
    """
    runs = [run for row in rows for run in _list_row(row, row)]
    for row in {_series_name(row): row for row in rows if row.variant.nproc > 1}.values():
        if any(other.variant.nproc == 1 and _series_name(other) == _series_name(row) for other in rows):
            continue
        alone = next((other for other in rows if _is_baseline(other, row)), None)
        if alone is not None:
            runs += _list_row(alone, row)
    return runs


def scaling_sections(rows: Sequence[Row], *, is_weak: bool) -> Iterator[Section]:
    """The series of more than one number of devices with their laws, and the largest predicted from the others."""
    runs = list_scaling_runs(rows)
    sizes = sorted({run.cluster.gpus for run in runs})
    if len(sizes) < _FEWEST_SIZES:
        return
    study = _of_kind(study_scaling(runs), is_weak=is_weak)
    if not study.series:
        return
    yield from series_sections(study)
    yield from law_sections(study)
    if len(sizes) > _FEWEST_SIZES:
        yield from _predict_largest(runs, sizes, is_weak=is_weak)


def _predict_largest(runs: Sequence[ScalingRun], sizes: Sequence[int], *, is_weak: bool) -> Iterator[Section]:
    largest = sizes[-1]
    study = _of_kind(study_scaling([run for run in runs if run.cluster.gpus < largest], [largest]), is_weak=is_weak)
    body: list[tuple[Cell, ...]] = []
    reasons: dict[str, None] = {}
    for series in study.series:
        measured = [
            run.samples_per_s
            for run in runs
            if run.model == series.setup.model and run.cluster.gpus == largest and run.samples_per_s is not None
        ]
        for fit in series.fits:
            if fit.predictions and measured:
                prediction = fit.predictions[0]
                low, high = prediction.interval or (None, None)
                reasons |= {f"No interval: {prediction.reason}.": None} if prediction.reason else {}
                reached = median(measured)
                body.append(
                    (
                        series.setup.model,
                        fit.law,
                        prediction.samples_per_s,
                        low,
                        high,
                        reached,
                        percent(reached / prediction.samples_per_s - 1),
                    )
                )
    columns = (
        Column("Strategy"),
        Column("Law"),
        Column("Predicted (samples/s)"),
        Column("From"),
        Column("To"),
        Column("Measured (samples/s)"),
        Column("Difference (%)"),
    )
    smaller = ", ".join(str(size) for size in sizes[:-1])
    note = f"Fitted to {smaller} devices alone; the interval is at 95 %."
    yield Section(f"{largest} devices predicted from {smaller}", columns, tuple(body), (note, *reasons))


def _of_kind(study: Scaling, *, is_weak: bool) -> Scaling:
    kind = ScalingKind.WEAK if is_weak else ScalingKind.STRONG
    return Scaling(study.runs, tuple(series for series in study.series if series.kind is kind), study.notes)


def _list_row(row: Row, named_as: Row) -> list[ScalingRun]:
    return [
        ScalingRun(
            path=training.name,
            cluster=_cluster_of(row, training.nodes or 1),
            model=_series_name(named_as),
            batch=training.samples,
            precision=None,
            seq_len=None,
            zero_stage=None,
            dp=None,
            mp=None,
            samples_per_s=(training.samples or 0) / (fmean(training.step_ns) / NS_PER_S),
            device=None,
            out_of_memory=False,
        )
        for training in row.trainings
    ]


def _cluster_of(row: Row, nodes: int) -> ClusterSize:
    """Where ranks do not spread evenly over nodes, each counts as a node of its own."""
    devices = row.variant.nproc
    return ClusterSize(nodes, devices // nodes) if devices % nodes == 0 else ClusterSize(devices, 1)


def _is_baseline(other: Row, row: Row) -> bool:
    return other.variant.strategy == _SINGLE and _options(other) == _options(row)


def _series_name(row: Row) -> str:
    return " ".join((row.variant.strategy, *_options(row)))


def _options(row: Row) -> tuple[str, ...]:
    return (row.variant.precision, *row.variant.changes)
