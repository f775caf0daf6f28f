"""DLPerf's rules for a speed and a speed-up, to the digit.

The speed of a run is the mean over iterations 101 to 200. The speed of a configuration is the median of its runs (seven
in the benchmark). The speed-up is over the median of one GPU on one node. NumPy rounds every result to two decimals: it
multiplies, rounds and divides, and so can differ from Python's ``round`` in the last digit. Source: Oneflow-Inc/DLPerf,
``MxNet/BERT/extract_mxnet_logs.py`` and ``DeepSpeed/Megatron-LM/extract_deepspeed_logs.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np

from perfscope.constants import MS_PER_S
from perfscope.errors import MissingInput, UsageError
from perfscope.result import Doc, Figures
from perfscope.tables.scaling import ClusterSize, ProtocolRun

#: Runs of each configuration in the benchmark.
PROTOCOL_RUNS = 7

_WARMUP = 100
_ITERATIONS = 200
_ONE_GPU = ClusterSize(1, 1)


class Speed(Figures, frozen=True):
    """The speed of one configuration: exactly the keys that the original script writes."""

    cluster: ClusterSize
    runs: Mapping[int, float]
    average_speed: Annotated[float, Doc("Mean of the runs, in samples/s over all GPUs.")]
    batch_size_per_device: Annotated[int, Doc("Batch size per GPU.")]
    median_speed: Annotated[float, Doc("Median of the runs.")]
    speedup: Annotated[float | None, Doc("Over one GPU on one node; null without it.")]


class ProtocolResult(NamedTuple):
    """A benchmark by its own rules: by model and cluster what the original script writes, and missing runs."""

    results: Mapping[str, Mapping[str, Speed]]
    notes: tuple[str, ...]


def mxnet_bert(runs: Sequence[ProtocolRun]) -> ProtocolResult:
    """gluon-nlp's BERT: batch over latency, as the median of the ranks of each iteration; fails without a long run."""
    return _apply_protocol(runs, _average_latencies)


def deepspeed(runs: Sequence[ProtocolRun]) -> ProtocolResult:
    """DeepSpeed: its SamplesPerSec, which is the mean since the third iteration; fails without a long run."""
    result = _apply_protocol(runs, _average_samples_per_s)
    note = "SamplesPerSec is a running mean, so the protocol averages means that all include the warm-up"
    return ProtocolResult(result.results, (*result.notes, note))


@dataclass(slots=True)
class _Configuration:
    """The runs of one model on one cluster size: the batch size per GPU, and the speed of each run by its number."""

    batch_per_gpu: int
    speeds: dict[int, float] = field(default_factory=dict)


def _apply_protocol(
    runs: Sequence[ProtocolRun], average_run: Callable[[ProtocolRun, list[str]], float | None]
) -> ProtocolResult:
    notes: list[str] = []
    models: dict[str, dict[ClusterSize, _Configuration]] = {}
    for run in sorted(runs, key=lambda run: (run.model, run.cluster.nodes or 0, run.cluster.gpus, run.run)):
        configurations = models.setdefault(run.model, {})
        configuration = configurations.setdefault(run.cluster, _Configuration(run.batch_per_gpu))
        if configuration.batch_per_gpu != run.batch_per_gpu:
            raise UsageError(
                f"{run.cluster} of {run.model} holds batch sizes {configuration.batch_per_gpu} and {run.batch_per_gpu}",
                hint="name one folder",
            )
        speed = average_run(run, notes)
        if speed is None:
            notes.append(f"{run.path}: no iteration beyond the first {_WARMUP}: excluded")
            continue
        if run.run in configuration.speeds:
            notes.append(f"{run.path}: a second log of {run.model} {run.cluster} is run {run.run}; only one counts")
        configuration.speeds[run.run] = speed
    results = {
        model: {str(speed.cluster): speed for speed in _summarize_model(model, configurations, notes)}
        for model, configurations in models.items()
    }
    results = {model: speeds for model, speeds in results.items() if speeds}
    if not results:
        raise MissingInput(f"no run is longer than the {_WARMUP} iterations that the protocol drops")
    return ProtocolResult(results, tuple(dict.fromkeys(notes)))


def _summarize_model(
    model: str, configurations: Mapping[ClusterSize, _Configuration], notes: list[str]
) -> Iterator[Speed]:
    measured = {cluster: configuration for cluster, configuration in configurations.items() if configuration.speeds}
    baseline = _median(measured[_ONE_GPU].speeds) if _ONE_GPU in measured else None
    if measured and baseline is None:
        notes.append(f"{model}: 1n1g is missing, so there is no speed-up; the original script writes 1.0 for all")
    for cluster, configuration in measured.items():
        speeds = configuration.speeds
        if len(speeds) < PROTOCOL_RUNS:
            notes.append(f"{model} {cluster}: {len(speeds)} runs; the protocol has {PROTOCOL_RUNS}")
        total = 0.0
        for speed in speeds.values():  # sum() of Python 3.12 compensates rounding errors, the original script does not
            total += speed
        median = _median(speeds)
        speedup = None if not baseline else _round(median / baseline)
        yield Speed(cluster, dict(speeds), _round(total / len(speeds)), configuration.batch_per_gpu, median, speedup)


def _average_latencies(run: ProtocolRun, notes: list[str]) -> float | None:
    """Lines are grouped by their number, as the original script does, where these are complete; else by iteration."""
    samples, gpus = MS_PER_S * run.batch_per_gpu, run.cluster.gpus
    speeds = [samples / round(line.value, 1) * gpus for line in run.speeds]
    steps: dict[int, list[float]] = {}
    for line, speed in zip(run.speeds, speeds, strict=True):
        if line.step is not None:
            steps.setdefault(line.step, []).append(speed)
    measured = [steps[step] for step in sorted(steps)][_WARMUP:_ITERATIONS]
    by_iteration = _round(float(np.mean([np.median(ranks) for ranks in measured]))) if measured else None
    if len(speeds) != _ITERATIONS * gpus:
        notes.append(
            f"{run.path}: {len(speeds)} lines, the original script needs {_ITERATIONS} x {gpus} and fails; "
            "averaged by iteration"
        )
        return by_iteration
    rows = np.asarray(speeds).reshape(_ITERATIONS, gpus)
    by_line = _round(float(np.mean(np.median(rows, axis=1)[_WARMUP:])))
    if by_iteration not in (None, by_line):
        notes.append(f"{run.path}: {by_line} as the original script groups lines; {by_iteration} by iteration")
    return by_line


def _average_samples_per_s(run: ProtocolRun, notes: list[str]) -> float | None:
    """Mean over the lines from the 99th on: the first two iterations print none."""
    values = [round(line.value, 4) for line in run.speeds][_WARMUP - 2 : _ITERATIONS]
    wanted = _ITERATIONS - _WARMUP
    if values and len(values) < wanted:
        notes.append(f"{run.path}: {len(values)} lines after the first {_WARMUP} iterations, not {wanted}")
    return _round(float(np.mean(values))) if values else None


def _median(speeds: Mapping[int, float]) -> float:
    return _round(float(np.median(list(speeds.values()))))


def _round(value: float) -> float:
    """Two decimals as NumPy rounds."""
    return float(np.round(np.float64(value), 2))
