"""The speed of a run, recomputed from its log.

The step time is over steady-state iterations. The first record of every start is warm-up. Where the framework's clock
runs on through evaluations and saves, a record that contains one is left out. Throughput is the batch over the step
time, never the figure that the log prints. Where the two disagree, this is a finding. A run without a single iteration
is a ``fail``, as in BigScience's one-liner (experiments/gpt2.md, "Magic scripts").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.flops.throughput import Throughput
from perfscope.analyzers.logs.flags import find_flags
from perfscope.analyzers.logs.setup import LAYOUT, Overrides, TrainingSetup, determine_setup
from perfscope.analyzers.logs.step_times import StepTimes, measure_step_times, steady_records, warmup_records
from perfscope.analyzers.shared.statistics import median
from perfscope.constants import GIGA, NS_PER_MS, NS_PER_S
from perfscope.report import Json
from perfscope.tables.columns import Bool, MaskedFloat64
from perfscope.tables.joblog import Iterations, JobLog, Save, Timer


class FirstAndLast(NamedTuple):
    """The first and the last value of a column."""

    first: float
    last: float


@dataclass(frozen=True, slots=True)
class LogSummary:
    """The speed and the set-up of the run that wrote one log.

    Attributes:
        path: The file.
        framework: What wrote it.
        status: ``ok``, ``incomplete`` (it ended badly after iterations), ``fail`` (not one iteration) or
            ``unrecognised``.
        reason: Why it is not ``ok``, or why it has no step time.
        log: The table.
        times: The time of an iteration.
        setup: Model, batch and layout.
        samples_per_s: Batch over the median time.
        tflops_per_gpu: By the BigScience convention, from the median time.
        flags: Doubts: ``code: sentence``.
    """

    path: str
    framework: str | None
    status: str
    reason: str | None
    log: JobLog
    times: StepTimes
    setup: TrainingSetup
    samples_per_s: float | None
    tflops_per_gpu: float | None
    flags: tuple[str, ...]

    @property
    def iterations(self) -> int | None:
        """Iterations of the records; None of two jobs, and where only a figure over all of them is stated."""
        if self.log.mixture is not None:
            return None
        is_unnumbered = any(self.log.fact(name) is not None for name in ("unnumbered_runs", "finished_runs"))
        if is_unnumbered and self.log.iterations.iteration.count() == 0:
            return None
        return int(self.log.iterations.new.sum())

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens/s over all GPUs."""
        if self.samples_per_s is None or self.setup.seq_len is None:
            return _steady_median(self.log.iterations, self.log.iterations.tokens_per_s)
        return self.samples_per_s * self.setup.seq_len

    @property
    def logged_tflops_per_gpu(self) -> float | None:
        """TFLOPs per GPU as the log states them, in its own convention."""
        return _steady_median(self.log.iterations, self.log.iterations.tflops_per_gpu)

    @property
    def loss(self) -> FirstAndLast | None:
        """The first and the last training loss."""
        losses = self.log.iterations.loss.compressed()
        first = self.log.fact("first_loss") if self.log.mixture is None else None
        if first is not None and isinstance(first.value, float):
            losses = np.concatenate(([first.value], losses))
        return _first_and_last(losses)

    @property
    def loss_scale(self) -> FirstAndLast | None:
        """The first and the last loss scale."""
        return _first_and_last(self.log.iterations.loss_scale.compressed())

    @property
    def skipped_iterations(self) -> int:
        """Iterations whose update was skipped."""
        return max(int(self.log.iterations.skipped.sum()), self.log.number("skipped_total") or 0)

    @property
    def nan_iterations(self) -> int:
        """Iterations with a NaN."""
        return int(self.log.iterations.nan.sum())

    def data(self) -> dict[str, Json]:
        """The log's entry in ``logs``."""
        rows = self.log.iterations
        return {
            "path": self.path,
            "framework": self.framework,
            "status": self.status,
            "reason": self.reason,
            "iterations": self.iterations,
            **_times_data(self.times, self.log),
            "samples_per_s": self.samples_per_s,
            "tokens_per_s": self.tokens_per_s,
            "tflops_per_gpu": self.tflops_per_gpu,
            "logged": {
                "samples_per_s": _steady_median(rows, rows.samples_per_s),
                "tokens_per_s_per_gpu": _steady_median(rows, rows.tokens_per_s_per_gpu),
                "tflops_per_gpu": self.logged_tflops_per_gpu,
            },
            **_setup_data(self.setup, self.log),
            "loss": self.loss._asdict() if self.loss else None,
            "loss_scale": self.loss_scale._asdict() if self.loss_scale else None,
            "skipped_iterations": self.skipped_iterations,
            "nan_iterations": self.nan_iterations,
            "memory": {
                "peak_allocated_bytes": self.log.memory.allocated_bytes,
                "peak_reserved_bytes": self.log.memory.reserved_bytes,
                "used_bytes": self.log.memory.used_bytes,
                "total_bytes": self.log.memory.total_bytes,
            },
            "oom": self.log.out_of_memory,
            "checkpoints": [_save_data(save) for save in self.log.saves],
            "timers_ms": {timer.name: _timer_data(timer) for timer in self.log.timers},
            "assumed": list(self.setup.assumed),
            "flags": list(self.flags),
        }


def summarize_log(log: JobLog, overrides: Overrides | None = None) -> LogSummary:
    """Summarize one log."""
    overrides = overrides or Overrides()
    times = measure_step_times(log, overrides.warmup)
    setup = determine_setup(log, overrides)
    samples_per_s = _samples_per_s(log, setup, times)
    status, reason = _status(log, times)
    tflops = _tflops(setup, times)
    return LogSummary(
        path=log.path,
        framework=log.framework,
        status=status,
        reason=reason,
        log=log,
        times=times,
        setup=setup,
        samples_per_s=samples_per_s,
        tflops_per_gpu=tflops,
        flags=find_flags(log, setup, times.median_s, tflops),
    )


def _samples_per_s(log: JobLog, setup: TrainingSetup, times: StepTimes) -> float | None:
    """Samples a second: batch over median time, or all samples over all time where the batch grew."""
    rows = log.iterations
    used = steady_records(rows, None) & ~np.ma.getmaskarray(rows.samples)
    batches = np.ma.getdata(rows.samples)[used]
    if len(batches) and batches.min() != batches.max():
        return float(batches.sum() / (np.ma.getdata(rows.wall_ns)[used].sum() / NS_PER_S))
    if log.mixture is not None:
        return None
    if setup.samples is not None and times.median_s:
        return setup.samples / times.median_s
    stated = _steady_median(rows, rows.samples_per_s)
    others = (source.samples_per_s for source in log.other_sources if source.samples_per_s is not None)
    total = log.fact("stated_samples_per_s")
    if stated is None and total is not None and isinstance(total.value, float):
        return total.value
    return next(others, None) if stated is None else stated


def _steady_or_settled(rows: Iterations) -> Bool:
    """The records that the step time is over; where none has a time, all but warm-up, or all."""
    steady = steady_records(rows, None)
    settled = ~warmup_records(rows, None)
    return steady if steady.any() else settled if settled.any() else ~settled


def _steady_median(rows: Iterations, figures: MaskedFloat64) -> float | None:
    """The median of a figure over the records that the step time is over; None where they do not state it."""
    return median(figures[_steady_or_settled(rows)]) if figures.count() else None


def _tflops(setup: TrainingSetup, times: StepTimes) -> float | None:
    if times.median_s is None or setup.checkpointing is None:
        return None
    if setup.parameters is None or setup.samples is None or setup.gpus is None or setup.seq_len is None:
        return None
    return Throughput(
        parameters=setup.parameters,
        samples=setup.samples,
        step_ns=round(times.median_s * NS_PER_S),
        gpus=setup.gpus,
        seq_len=setup.seq_len,
        checkpointing=setup.checkpointing,
    ).tflops_per_gpu


def _status(log: JobLog, times: StepTimes) -> tuple[str, str | None]:
    if len(log.iterations) or log.mixture is not None:
        if log.ended is not None:
            return "incomplete", log.ended
        return "ok", _explain_absence(log) if times.mean_all_s is None else None
    if log.fact("finished_runs") is not None:
        return "ok", "the log states the time of the run, but not its number of steps"
    if log.fact("scaled_bars") is not None or log.fact("first_loss") is not None:
        return "incomplete", log.ended or _explain_losses(log)
    if log.framework is None and not log.names_run and not log.unreadable and log.ended is None:
        return "unrecognised", "no line matches a known framework"
    return "fail", _explain_failure(log)


def _explain_absence(log: JobLog) -> str:
    if log.mixture is not None:
        return f"{log.mixture}: no figure is of one job"
    return "the log does not state the time of an iteration"


def _explain_losses(log: JobLog) -> str:
    if log.fact("scaled_bars") is not None:
        return "its bars count steps in thousands, which is too coarse for the time of a step"
    return "the log states losses, but neither the number of steps nor their time"


def _explain_failure(log: JobLog) -> str:
    if log.unreadable:
        return f"{log.unreadable} iteration records hold no readable time"
    return "no iteration was logged" + (f": {log.ended}" if log.ended is not None else "")


def _times_data(times: StepTimes, log: JobLog) -> dict[str, Json]:
    rows = log.iterations
    numbers = rows.iteration.compressed()
    interval = times.median_interval_s
    return {
        "records": len(rows),
        "first_iteration": int(numbers[0]) if len(numbers) else None,
        "last_iteration": int(numbers[-1]) if len(numbers) else None,
        "train_iterations": log.number("train_iterations"),
        "complete": log.complete,
        "time_source": log.time_source,
        "median_s": times.median_s,
        "median_interval_s": list(interval) if interval else None,
        "mean_s": times.mean_s,
        "p95_s": times.p95_s,
        "min_s": times.min_s,
        "max_s": times.max_s,
        "first_s": times.first_s,
        "mean_all_s": times.mean_all_s,
        "used_records": times.records,
        "left_out": {"warmup": times.warmup, "evaluation": times.evaluation, "save": times.save},
        "restarts": int(rows.attempt.max()) if len(rows) else 0,
        "redone_iterations": log.redone,
    }


def _setup_data(setup: TrainingSetup, log: JobLog) -> dict[str, Json]:
    precision = log.fact("precision")
    return {
        "parameters": setup.parameters,
        "parameters_source": setup.parameters_source,
        "size": None if setup.parameters is None else f"{setup.parameters / GIGA:.4g}B",
        "gpus": setup.gpus,
        "seq_len": setup.seq_len,
        "global_batch_size": setup.samples,
        "gbs": setup.samples,
        **{name: setup.layout.get(name) for name in LAYOUT},
        **{name: log.number(name) for name in ("layers", "hidden", "heads", "vocab")},
        "precision": None if precision is None else str(precision.value),
        "checkpointing": None if setup.checkpointing is None else str(setup.checkpointing),
    }


def _first_and_last(values: npt.NDArray[np.float64]) -> FirstAndLast | None:
    return FirstAndLast(float(values[0]), float(values[-1])) if len(values) else None


def _save_data(save: Save) -> dict[str, Json]:
    seconds = None if save.wall_ns is None else save.wall_ns / NS_PER_S
    return {
        "iteration": save.iteration,
        "seconds": seconds,
        "source": save.source,
        "path": save.path,
        "asynchronous": save.asynchronous,
        "drained_seconds": None if save.drained_ns is None else save.drained_ns / NS_PER_S,
    }


def _timer_data(timer: Timer) -> dict[str, Json]:
    return {"mean": timer.mean_ns / NS_PER_MS, "lines": timer.lines}
