"""DLPerf's rules for a speed and a speed-up, to the digit.

The speed of a run is the mean over iterations 101 to 200. The speed of a configuration is the median of its runs (seven
in the benchmark). The speed-up is over the median of one GPU on one node. NumPy rounds every result to two decimals: it
multiplies, rounds and divides, and so can differ from Python's ``round`` in the last digit. Source: Oneflow-Inc/DLPerf,
``MxNet/BERT/extract_mxnet_logs.py`` and ``DeepSpeed/Megatron-LM/extract_deepspeed_logs.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfscope.constants import MS_PER_S
from perfscope.errors import MissingInput, UsageError
from perfscope.report import Json
from perfscope.tables.scaling import ClusterSize, LoggedSpeed, ProtocolRun

#: Runs of each configuration in the benchmark.
PROTOCOL_RUNS = 7

_WARMUP = 100
_ITERATIONS = 200
#: The first iterations, for which DeepSpeed prints no speed.
_UNPRINTED = 2
_ONE_GPU = ClusterSize(1, 1)


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of one configuration.

    Attributes:
        cluster: Nodes and GPUs.
        batch_per_gpu: Batch size per GPU.
        runs: Speed of each run, by its number, in samples/s over all GPUs.
        average: Mean of the runs.
        median: Their median.
        speedup: Over one GPU on one node; absent without it.
    """

    cluster: ClusterSize
    batch_per_gpu: int
    runs: Mapping[int, float]
    average: float
    median: float
    speedup: float | None

    def data(self) -> dict[str, Json]:
        """Exactly the keys that the original script writes."""
        return {
            "average_speed": self.average,
            "batch_size_per_device": self.batch_per_gpu,
            "median_speed": self.median,
            "speedup": self.speedup,
        }


@dataclass(frozen=True, slots=True)
class ProtocolResult:
    """A benchmark by its own rules.

    Attributes:
        speeds: By model, then in the order of nodes and GPUs.
        notes: Missing runs, and where the original script fails or is wrong.
    """

    speeds: Mapping[str, tuple[Speed, ...]]
    notes: tuple[str, ...]

    def data(self) -> dict[str, Json]:
        """The object that the original script writes to its result file."""
        return {model: {str(speed.cluster): speed.data() for speed in speeds} for model, speeds in self.speeds.items()}


def mxnet_bert(runs: Sequence[ProtocolRun]) -> ProtocolResult:
    """gluon-nlp's BERT: batch over latency, as the median of the ranks of each iteration.

    Raises:
        MissingInput: No run is long enough.
    """
    return _apply_protocol(runs, _average_latencies)


def deepspeed(runs: Sequence[ProtocolRun]) -> ProtocolResult:
    """DeepSpeed: its SamplesPerSec, which is the mean since the third iteration.

    Raises:
        MissingInput: No run is long enough.
    """
    result = _apply_protocol(runs, _average_samples_per_s)
    note = "SamplesPerSec is a running mean, so the protocol averages means that all include the warm-up"
    return ProtocolResult(result.speeds, (*result.notes, note))


_Rule = Callable[[ProtocolRun, list[str]], float | None]


@dataclass(slots=True)
class _Configuration:
    """The runs of one model on one cluster size.

    Attributes:
        batch_per_gpu: Batch size per GPU.
        speeds: Speed of each run, by its number.
        positions: Position of each run's log in its folder.
    """

    batch_per_gpu: int
    speeds: dict[int, float] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)


def _apply_protocol(runs: Sequence[ProtocolRun], average_run: _Rule) -> ProtocolResult:
    notes: list[str] = []
    models: dict[str, dict[ClusterSize, _Configuration]] = {}
    for run in sorted(runs, key=lambda run: (run.model, run.cluster.nodes, run.cluster.gpus_per_node, run.run)):
        if run.script_failure:
            notes.append(f"{run.path}: {run.script_failure}")
        configurations = models.setdefault(run.model, {})
        configuration = configurations.setdefault(run.cluster, _Configuration(run.batch_per_gpu))
        if configuration.batch_per_gpu != run.batch_per_gpu:
            raise UsageError(
                f"{run.cluster} of {run.model} holds batch sizes {configuration.batch_per_gpu} and {run.batch_per_gpu}",
                hint="name one folder",
            )
        speed = average_run(run, notes)
        if speed is None:
            continue
        if run.run in configuration.speeds:
            notes.append(f"{run.path}: a second log of {run.model} {run.cluster} is run {run.run}; only one counts")
        configuration.speeds[run.run] = speed
        configuration.positions[run.run] = run.folder_position
    speeds = {model: tuple(_summarize_model(model, configurations, notes)) for model, configurations in models.items()}
    speeds = {model: model_speeds for model, model_speeds in speeds.items() if model_speeds}
    if not speeds:
        raise MissingInput(f"no run is longer than the {_WARMUP} iterations that the protocol drops")
    return ProtocolResult(speeds, tuple(dict.fromkeys(notes)))


def _summarize_model(
    model: str, configurations: Mapping[ClusterSize, _Configuration], notes: list[str]
) -> Iterator[Speed]:
    measured = {cluster: configuration for cluster, configuration in configurations.items() if configuration.speeds}
    baseline = _median(measured[_ONE_GPU].speeds) if _ONE_GPU in measured else None
    if measured and baseline is None:
        notes.append(
            f"{model}: 1n1g is missing, so there is no speed-up; the original script writes 1.0 for all, no median"
        )
    for cluster, configuration in measured.items():
        speeds, positions = configuration.speeds, configuration.positions
        if len(speeds) < PROTOCOL_RUNS:
            notes.append(f"{model} {cluster}: {len(speeds)} runs; the protocol has {PROTOCOL_RUNS}")
        median = _median(speeds)
        average = _average([speeds[run] for run in sorted(speeds, key=lambda run: positions[run])])
        if average != (by_number := _average(list(speeds.values()))):
            notes.append(
                f"{model} {cluster}: the average of {len(speeds)} runs is a tie: {average} in the folder's order, in "
                f"which the original script sums, {by_number} in the order of their numbers"
            )
        yield Speed(
            cluster=cluster,
            batch_per_gpu=configuration.batch_per_gpu,
            runs=dict(speeds),
            average=average,
            median=median,
            speedup=None if not baseline else _round(median / baseline),
        )


def _median(speeds: Mapping[int, float]) -> float:
    return _round(float(np.median(list(speeds.values()))))


def _average(speeds: Sequence[float]) -> float:
    total = 0.0
    for speed in speeds:  # sum() of Python 3.12 compensates rounding errors, which the original script does not
        total += speed
    return _round(total / len(speeds))


def _average_latencies(run: ProtocolRun, notes: list[str]) -> float | None:
    cluster = run.cluster
    speeds = [
        LoggedSpeed(
            line.step, MS_PER_S / round(line.value, 1) * run.batch_per_gpu * cluster.nodes * cluster.gpus_per_node
        )
        for line in run.speeds
    ]
    by_step = _group_by_step(speeds)
    if len(speeds) != _ITERATIONS * cluster.gpus:
        notes.append(
            f"{run.path}: {len(speeds)} lines, the original script needs {_ITERATIONS} x {cluster.gpus} and fails; "
            "averaged by iteration"
        )
        return _average_iterations(by_step, run, notes)
    rows = np.asarray([line.value for line in speeds]).reshape(_ITERATIONS, cluster.gpus)
    by_line = _round(float(np.mean(np.median(rows, axis=1)[_WARMUP:_ITERATIONS])))
    by_iteration = _average_iterations(by_step, run, []) if by_step else by_line
    if by_iteration is not None and by_iteration != by_line:
        notes.append(f"{run.path}: {by_line} as the original script groups lines; {by_iteration} by iteration")
    return by_line


def _group_by_step(lines: Sequence[LoggedSpeed]) -> dict[int, list[float]]:
    steps: dict[int, list[float]] = {}
    for line in lines:
        if line.step is not None:
            steps.setdefault(line.step, []).append(line.value)
    return steps


def _average_iterations(steps: Mapping[int, Sequence[float]], run: ProtocolRun, notes: list[str]) -> float | None:
    """Mean over the iterations after the first hundred, at most to the two hundredth, counted from the first."""
    measured = [steps[step] for step in sorted(steps)][_WARMUP:_ITERATIONS]
    if not measured:
        notes.append(f"{run.path}: {len(steps)} iterations, none beyond the first {_WARMUP}: excluded")
        return None
    return _round(float(np.mean([np.median(ranks) for ranks in measured])))


def _average_samples_per_s(run: ProtocolRun, notes: list[str]) -> float | None:
    """Mean over the lines from the 99th on: the first two iterations print none."""
    values = [round(line.value, 4) for line in run.speeds][_WARMUP - _UNPRINTED : _ITERATIONS]
    if not values:
        notes.append(
            f"{run.path}: {len(run.speeds)} lines, none beyond the first {_WARMUP} iterations: excluded; "
            "the original script writes NaN"
        )
        return None
    if len(values) < _ITERATIONS - _WARMUP:
        notes.append(
            f"{run.path}: {len(values)} lines after the first {_WARMUP} iterations, not {_ITERATIONS - _WARMUP}"
        )
    return _round(float(np.mean(values)))


def _round(value: float) -> float:
    """Two decimals as NumPy rounds."""
    return float(np.round(np.float64(value), 2))
