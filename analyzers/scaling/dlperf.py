"""DLPerf's rules for a speed and a speed-up, to the digit.

A run's speed is the mean over iterations 101 to 200; a configuration's is the median of its runs (seven in the
benchmark), and the speed-up is over the median of one GPU on one node. Every step is rounded to two decimals by NumPy,
which multiplies, rounds and divides, and so can differ from Python's ``round`` in the last digit. Source:
Oneflow-Inc/DLPerf, ``MxNet/BERT/extract_mxnet_logs.py`` and ``DeepSpeed/Megatron-LM/extract_deepspeed_logs.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.errors import MissingInput, UsageError
from perfscope.report import Json
from perfscope.tables.scaling import Case, Printed, ProtocolRun

WANTED_RUNS = 7

_WARMUP = 100
_ITERATIONS = 200
_UNPRINTED = 2
_ONE = Case(1, 1)


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of one configuration.

    Attributes:
        case: Nodes and GPUs.
        batch_per_gpu: Batch size of a GPU.
        runs: Speed of each run, by its number, in samples a second over all GPUs.
        average: Mean of the runs.
        median: Their median.
        speedup: Over one GPU on one node; absent without it.
    """

    case: Case
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
        notes: Fewer runs than the benchmark has, and where the original script stops or answers wrongly.
    """

    speeds: Mapping[str, tuple[Speed, ...]]
    notes: tuple[str, ...]

    def data(self) -> dict[str, Json]:
        """The object that the original script writes to its result file."""
        return {model: {str(speed.case): speed.data() for speed in speeds} for model, speeds in self.speeds.items()}


def mxnet_bert(runs: Sequence[ProtocolRun]) -> ProtocolResult:
    """gluon-nlp's BERT: batch over latency, the median of the ranks of each iteration.

    Raises:
        MissingInput: No run is long enough.
    """
    return _compute(runs, _latencies)


def deepspeed(runs: Sequence[ProtocolRun]) -> ProtocolResult:
    """DeepSpeed: its SamplesPerSec, which is a mean from the third iteration on.

    Raises:
        MissingInput: No run is long enough.
    """
    result = _compute(runs, _speeds)
    note = "SamplesPerSec is a running mean, so that the protocol takes a mean of means, warm-up in each of them"
    return ProtocolResult(result.speeds, (*result.notes, note))


_Rule = Callable[[ProtocolRun, list[str]], float | None]


def _compute(runs: Sequence[ProtocolRun], rule: _Rule) -> ProtocolResult:
    notes: list[str] = []
    found: dict[str, dict[Case, dict[int, float]]] = {}
    listed: dict[tuple[str, Case, int], int] = {}
    batches: dict[tuple[str, Case], int] = {}
    for run in sorted(runs, key=lambda run: (run.model, run.case.nodes, run.case.gpus_per_node, run.run)):
        if run.stops:
            notes.append(f"{run.path}: {run.stops}")
        batch = batches.setdefault((run.model, run.case), run.batch_per_gpu)
        if batch != run.batch_per_gpu:
            raise UsageError(
                f"{run.case} of {run.model} holds batch sizes {batch} and {run.batch_per_gpu}", hint="name one folder"
            )
        speed = rule(run, notes)
        if speed is None:
            continue
        by_run = found.setdefault(run.model, {}).setdefault(run.case, {})
        if run.run in by_run:
            notes.append(f"{run.path}: another log of {run.model} {run.case} is run {run.run} too; one of them counts")
        by_run[run.run] = speed
        listed[run.model, run.case, run.run] = run.listed
    if not found:
        raise MissingInput(f"no run is longer than the {_WARMUP} iterations that the protocol drops")
    speeds = {model: tuple(_configurations(model, cases, batches, listed, notes)) for model, cases in found.items()}
    return ProtocolResult(speeds, tuple(dict.fromkeys(notes)))


def _configurations(
    model: str,
    cases: Mapping[Case, Mapping[int, float]],
    batches: Mapping[tuple[str, Case], int],
    listed: Mapping[tuple[str, Case, int], int],
    notes: list[str],
) -> Iterator[Speed]:
    base = _rounded(float(np.median(list(cases[_ONE].values())))) if _ONE in cases else None
    if base is None:
        notes.append(
            f"{model}: 1n1g is missing, so there is no speed-up; the original script writes 1.0 for all, no median"
        )
    for case, by_run in cases.items():
        if len(by_run) < WANTED_RUNS:
            notes.append(f"{model} {case}: {len(by_run)} runs; the protocol has {WANTED_RUNS}")
        median = _rounded(float(np.median(list(by_run.values()))))
        order = sorted(by_run, key=lambda run: listed[model, case, run])
        average = _average([by_run[run] for run in order])
        if average != (by_number := _average(list(by_run.values()))):
            notes.append(
                f"{model} {case}: the average of {len(by_run)} runs is a tie: {average} in the folder's order, as the "
                f"original script adds up, {by_number} in the order of their numbers"
            )
        yield Speed(
            case=case,
            batch_per_gpu=batches[model, case],
            runs=dict(by_run),
            average=average,
            median=median,
            speedup=None if not base else _rounded(median / base),
        )


def _average(speeds: Sequence[float]) -> float:
    total = 0.0
    for speed in speeds:  # sum() of Python 3.12 compensates, and so rounds other than adding up does
        total += speed
    return _rounded(total / len(speeds))


def _latencies(run: ProtocolRun, notes: list[str]) -> float | None:
    gpus = run.case.gpus
    speeds = [
        Printed(line.step, 1000.0 / round(line.value, 1) * run.batch_per_gpu * run.case.nodes * run.case.gpus_per_node)
        for line in run.printed
    ]
    by_step = _by_step(speeds)
    if len(speeds) != _ITERATIONS * gpus:
        notes.append(
            f"{run.path}: {len(speeds)} lines where the original script wants {_ITERATIONS} x {gpus} and stops; "
            "taken by iteration"
        )
        return _mean(by_step, run, notes)
    rows = np.asarray([line.value for line in speeds]).reshape(_ITERATIONS, gpus)
    theirs = _rounded(float(np.mean(np.median(rows, axis=1)[_WARMUP:_ITERATIONS])))
    ours = _mean(by_step, run, []) if by_step else theirs
    if ours is not None and ours != theirs:
        notes.append(f"{run.path}: {theirs} as the original script groups lines; {ours} by iteration")
    return theirs


def _by_step(lines: Sequence[Printed]) -> dict[int, list[float]]:
    steps: dict[int, list[float]] = {}
    for line in lines:
        if line.step is not None:
            steps.setdefault(line.step, []).append(line.value)
    return steps


def _mean(steps: Mapping[int, Sequence[float]], run: ProtocolRun, notes: list[str]) -> float | None:
    """Mean over the iterations after the first hundred, at most to the two hundredth, counted from the first."""
    kept = [steps[step] for step in sorted(steps)][_WARMUP:_ITERATIONS]
    if not kept:
        notes.append(f"{run.path}: {len(steps)} iterations, none beyond the first {_WARMUP}: left out")
        return None
    return _rounded(float(np.mean([np.median(ranks) for ranks in kept])))


def _speeds(run: ProtocolRun, notes: list[str]) -> float | None:
    """The list from its 99th line on: the first two iterations print none."""
    values = [round(line.value, 4) for line in run.printed][_WARMUP - _UNPRINTED : _ITERATIONS]
    if not values:
        notes.append(
            f"{run.path}: {len(run.printed)} lines, none beyond the first {_WARMUP} iterations: left out; "
            "the original script writes NaN"
        )
        return None
    if len(values) < _ITERATIONS - _WARMUP:
        notes.append(
            f"{run.path}: {len(values)} lines after the first {_WARMUP} iterations, not {_ITERATIONS - _WARMUP}"
        )
    return _rounded(float(np.mean(values)))


def _rounded(value: float) -> float:
    """Two decimals as NumPy rounds."""
    return float(np.round(np.float64(value), 2))
