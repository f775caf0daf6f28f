"""The speed of a run, recomputed from its log.

The step time is over steady-state iterations. The first record of every start is warm-up. Where the framework's clock
runs on through evaluations and saves, a record that contains one is left out. Throughput is the batch over the step
time, never the figure that the log prints. Where the two disagree, this is a finding. A run without a single iteration
is a ``fail``, as in BigScience's one-liner (experiments/gpt2.md, "Magic scripts").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.logs.setup import Overrides, TrainingSetup, determine_setup
from perfscope.analyzers.logs.step_times import LoggedStepTimes, measure_step_times, steady_records, warmup_records
from perfscope.constants import GIGA, NS_PER_MS, NS_PER_S, TERA
from perfscope.measures.statistics import STALL, median
from perfscope.models.conventions import bigscience
from perfscope.report import MOST_NAMED, Section
from perfscope.result import GIGABYTES, Column, Doc, Figures, Result, Table
from perfscope.tables.columns import MaskedFloat64
from perfscope.tables.joblog import Iterations, JobLog
from perfscope.units import format_count, format_parameters, format_seconds

#: By how much two figures of one thing may differ.
_TOLERANCE = 0.05
_COARSE = 0.1
_LOWER_BOUND = "DeepSpeed's timers"
_FROM_NAME = ("gpus", "tp", "pp", "dp", "gas", "mbs", "gbs", "zero_stage", "nodes")


def find_flags(log: JobLog, setup: TrainingSetup, median_s: float | None) -> tuple[str, ...]:
    """Every contradiction in one log."""
    return (
        *_check_samples_per_s(log, setup.gbs),
        *_check_other_sources(log, median_s, setup.gbs),
        *_check_batch(log, setup.gbs),
        *_check_name(log, setup.parameters),
        *_check_records(log, median_s),
        *_check_disturbances(log.iterations),
        *log.remarks,
    )


def _check_samples_per_s(log: JobLog, samples: int | None) -> Iterator[str]:
    rows = log.iterations
    timed = ~np.ma.getmaskarray(rows.wall_ns) & ~np.ma.getmaskarray(rows.samples_per_s) & (rows.disturbed == "")
    stated = np.ma.getdata(rows.samples_per_s)[timed]
    batch = np.where(np.ma.getmaskarray(rows.samples), samples or 0, np.ma.getdata(rows.samples))[timed]
    expected = batch / (np.ma.getdata(rows.wall_ns)[timed] / NS_PER_S)
    disagrees = (expected > 0) & (np.abs(stated - expected) > _TOLERANCE * expected)
    if disagrees.any():
        first = int(np.flatnonzero(disagrees)[0])
        yield (
            f"throughput-disagrees: the log states {stated[first]:.4g} samples/s where batch / time is "
            f"{expected[first]:.4g} (x {stated[first] / expected[first]:.3g}), in {int(disagrees.sum())} of "
            f"{len(disagrees)} records"
        )


def _check_other_sources(log: JobLog, median_s: float | None, samples: int | None) -> Iterator[str]:
    for source in log.other_sources:
        if source.samples_per_s is not None and samples is not None and median_s:
            expected = samples / median_s
            if abs(source.samples_per_s - expected) > _TOLERANCE * expected:
                yield (
                    f"throughput-disagrees: {source.name} gives {source.samples_per_s:.4g} samples/s where "
                    f"batch / time is {expected:.4g} (x {source.samples_per_s / expected:.3g})"
                )
        elif source.wall_ns is not None and median_s:
            seconds = source.wall_ns / NS_PER_S
            is_bound = source.name.startswith(_LOWER_BOUND) and seconds < median_s
            if abs(seconds - median_s) > _TOLERANCE * median_s and not is_bound:
                yield (
                    f"time-disagrees: an iteration takes {median_s:.4g} s by {log.time_source}, "
                    f"{seconds:.4g} s by {source.name}"
                )


def _check_batch(log: JobLog, samples: int | None) -> Iterator[str]:
    micro, accumulated, replicas = (log.number(name) for name in ("mbs", "gas", "dp"))
    if micro and accumulated and replicas and samples and micro * accumulated * replicas != samples:
        yield (
            f"batch-contradicts: micro-batch {micro} x accumulation {accumulated} x data parallel {replicas} is "
            f"{micro * accumulated * replicas}, the global batch is {samples}"
        )
    batches = np.unique(log.iterations.samples.compressed())
    if len(batches) > 1:
        yield f"batch-ramp-up: the batch goes from {batches[0]} to {batches[-1]}; throughput is all samples over time"


def _check_name(log: JobLog, parameters: int | None) -> Iterator[str]:
    for name in _FROM_NAME:
        facts = log.facts.get(name, ())
        named = next((fact.value for fact in facts if fact.source == "name"), None)
        if named is not None and facts[0].value != named:
            yield f"name-disagrees: the file's name says {name} {named}, the {facts[0].source} {facts[0].value}"
    sizes = log.facts.get("parameters", ())
    size = next((fact.value for fact in sizes if fact.source == "name"), None)
    if isinstance(size, int) and parameters and abs(size - parameters) > _TOLERANCE * parameters:
        yield (f"name-disagrees: the file's name says {size / GIGA:.4g}B parameters, the log {parameters / GIGA:.4g}B")


def _check_records(log: JobLog, median_s: float | None) -> Iterator[str]:
    rows = log.iterations
    if median_s:
        seconds = np.ma.getdata(rows.wall_ns) / NS_PER_S
        slow = ~np.ma.getmaskarray(rows.wall_ns) & (seconds > STALL * median_s) & (rows.disturbed == "")
        slow[:1] = False
        if slow.any():
            first = int(np.flatnonzero(slow)[0])
            number = rows.iteration[first]
            where = "" if number is np.ma.masked else f", first at iteration {number}"
            yield (
                f"slow-iterations: {int(slow.sum())} took over {STALL:g} times the median{where} "
                f"({seconds[first]:.4g} s)"
            )
        resolution_s = median(rows.wall_resolution_ns / NS_PER_S) or 0.0
        if resolution_s > _COARSE * median_s:
            yield f"coarse-clock: the time is {median_s:.4g} s, give or take {resolution_s:.2g} s by its last digit"
    if log.unreadable:
        yield f"unreadable: {log.unreadable} iteration records hold no readable time and are left out"
    if log.gaps:
        yield f"missing: iterations are missing between records in {log.gaps} places"
    if len(rows) and rows.attempt.max() > 0:
        yield f"restarted: {int(rows.attempt.max())} times; {log.redone} iterations were repeated"
    if log.time_source is not None and log.time_source.startswith(_LOWER_BOUND):
        yield "lower-bound: the timers cover forward, backward and step, not the time between them"
    spans = np.unique(rows.span)
    if len(spans) and spans[-1] > 1:
        if len(rows) == 1:
            yield f"means: the only figure is a mean over {spans[-1]} iterations, warm-up included"
        else:
            yield f"means: a record is the mean of {spans[-1]} iterations; median and p95 are of those means"


def _check_disturbances(rows: Iterations) -> Iterator[str]:
    used = steady_records(rows, None)
    disturbed = rows.disturbed[used & (rows.disturbed != "")]
    if len(disturbed):
        what = "an evaluation or a checkpoint save" if "evaluation" in disturbed else "a checkpoint save"
        yield (
            f"disturbed: {len(disturbed)} of the {int(used.sum())} times that the median is of contain {what}; "
            "too few others are left"
        )


class FirstAndLast(Figures, frozen=True):
    """The first and the last value of a column."""

    first: Annotated[float, Doc("The first.")]
    last: Annotated[float, Doc("The last.")]


class Logged(Figures, frozen=True):
    """What the log itself states, medians over the records that the step time is over."""

    samples_per_s: Annotated[float | None, Doc("Samples a second.")]
    tokens_per_s_per_gpu: Annotated[float | None, Doc("Tokens a second and GPU.")]
    tflops_per_gpu: Annotated[float | None, Doc("TFLOPs per GPU, in the log's own convention.")]


class LoggedMemory(Figures, frozen=True):
    """Device memory, the largest that any rank reports."""

    peak_allocated_bytes: Annotated[int | None, Doc("Peak allocated by tensors.")]
    peak_reserved_bytes: Annotated[int | None, Doc("Peak reserved by the allocator.")]
    used_bytes: Annotated[int | None, Doc("In use on the device, as nvidia-smi sees it.")]
    total_bytes: Annotated[int | None, Doc("What the device has.")]


class LoggedSave(Figures, frozen=True):
    """One checkpoint save."""

    iteration: Annotated[int | None, Doc("After which iteration.")]
    seconds: Annotated[float | None, Doc("How long it stalled training.")]
    source: Annotated[str | None, Doc("Where the time comes from: `timer` or `timestamps`.")]
    path: Annotated[str | None, Doc("Where to.")]
    asynchronous: Annotated[bool | None, Doc("Training went on meanwhile.")]
    drained_seconds: Annotated[float | None, Doc("Until an asynchronous one lay on disk.")]


class LoggedTimer(Figures, frozen=True):
    """A named part of an iteration."""

    mean: Annotated[float, Doc("Mean of the slowest rank, in ms.")]
    lines: Annotated[int, Doc("Over how many lines.")]


class BenchmarkRun(Figures, frozen=True):
    """What MLPerf's events state of a run."""

    run_s: Annotated[float | None, Doc("From `run_start` to `run_stop`: the score.")]
    warmup_s: Annotated[float | None, Doc("Warm-up before it.")]
    iterations: Annotated[int | None, Doc("Iterations until its end.")]
    evaluation: Annotated[FirstAndLast | None, Doc("The quality at the first and the last evaluation.")]
    target: Annotated[float | None, Doc("The quality that ends it.")]


class LogSummary(Result, frozen=True, kw_only=True):
    """The speed and the set-up of the run that wrote one log."""

    INLINE = ("times", "setup")

    log: JobLog
    times: LoggedStepTimes
    setup: TrainingSetup
    path: Annotated[str, Doc("The file.")]
    framework: Annotated[str | None, Doc("What wrote it.")]
    status: Annotated[str, Doc("`ok`, `incomplete`, `fail` (not one iteration) or `unrecognised`.")]
    reason: Annotated[str | None, Doc("Why it is not `ok`, or why it has no step time.")]
    iterations: Annotated[int | None, Doc("Iterations of the records; null if only a figure over all is stated.")]
    records: Annotated[int, Doc("Records.")]
    first_iteration: Annotated[int | None, Doc("Number of the first record.")]
    last_iteration: Annotated[int | None, Doc("Number of the last record.")]
    train_iterations: Annotated[int | None, Doc("The last iteration of the run, as planned.")]
    complete: Annotated[bool | None, Doc("It reached this.")]
    time_source: Annotated[str | None, Doc("What the times are.")]
    restarts: Annotated[int, Doc("Restarts.")]
    redone_iterations: Annotated[int, Doc("Iterations that were done again after a restart.")]
    samples_per_s: Annotated[float | None, Doc("Batch over the median time.")]
    tokens_per_s: Annotated[float | None, Doc("Tokens a second over all GPUs.")]
    tflops_per_gpu: Annotated[float | None, Doc("By the BigScience convention, from the median time.")]
    tflops_reason: Annotated[str | None, Doc("Why there are none.")]
    logged: Annotated[Logged, Doc("What the log itself states.")]
    layers: Annotated[int | None, Doc("Layers of the model.")]
    hidden: Annotated[int | None, Doc("Hidden size.")]
    heads: Annotated[int | None, Doc("Attention heads.")]
    vocab: Annotated[int | None, Doc("Vocabulary.")]
    precision: Annotated[str | None, Doc("Precision of the training.")]
    loss: Annotated[FirstAndLast | None, Doc("Training loss.")]
    loss_scale: Annotated[FirstAndLast | None, Doc("Loss scale.")]
    skipped_iterations: Annotated[int, Doc("Iterations whose update was skipped.")]
    nan_iterations: Annotated[int, Doc("Iterations with a NaN.")]
    memory: Annotated[LoggedMemory, Doc("Device memory.")]
    oom: Annotated[str | None, Doc("What ran out of memory: `device` or `host`.")]
    checkpoints: Annotated[tuple[LoggedSave, ...], Doc("Checkpoint saves.")]
    timers_ms: Annotated[Mapping[str, LoggedTimer], Doc("Parts of an iteration.")]
    benchmark: Annotated[BenchmarkRun | None, Doc("What MLPerf's events state; null in other logs.")]
    flags: Annotated[tuple[str, ...], Doc("Doubts: `code: sentence`.")]


def _interval(summary: LogSummary) -> str | None:
    interval = summary.times.median_interval_s
    return None if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}"


def _change(values: FirstAndLast | None) -> str | None:
    return f"{values.first:.4g} to {values.last:.4g}" if values else None


class TrainingLogs(Result, frozen=True):
    """The speeds and the set-ups of several runs."""

    logs: Annotated[tuple[LogSummary, ...], Doc("One entry a log.")]
    unread: Annotated[tuple[str, ...], Doc("What could not be read.")]

    SPEED = Table(
        "Speed",
        "logs",
        (
            Column("Log", "path"),
            Column("Framework", "framework"),
            Column("Status", "status"),
            Column("Iterations", "iterations"),
            Column("Median (s)", lambda log: log.times.median_s, decimals=3),
            Column("95 % interval (s)", _interval),
            Column("Mean (s)", lambda log: log.times.mean_s, decimals=3),
            Column("p95 (s)", lambda log: log.times.p95_s, decimals=3),
            Column("Samples/s", "samples_per_s", decimals=2),
            Column("TFLOPs per GPU", "tflops_per_gpu"),
            Column("Logged TFLOPs", lambda log: log.logged.tflops_per_gpu),
        ),
    )
    SETUP = Table(
        "Set-up",
        "logs",
        (
            Column("Log", "path"),
            Column("Size", lambda log: log.setup.parameters and format_parameters(log.setup.parameters)),
            Column("GPUs", lambda log: log.setup.gpus),
            Column("TP", lambda log: log.setup.layout.tp),
            Column("PP", lambda log: log.setup.layout.pp),
            Column("DP", lambda log: log.setup.layout.dp),
            Column("GAS", lambda log: log.setup.layout.gas),
            Column("MBS", lambda log: log.setup.layout.mbs),
            Column("GBS", lambda log: log.setup.gbs),
            Column("ZeRO", lambda log: log.setup.layout.zero_stage),
            Column("Seq length", lambda log: log.setup.seq_len),
            Column("Loss", lambda log: _change(log.loss)),
            Column("Loss scale", lambda log: log.loss_scale and log.loss_scale.last, decimals=0),
            Column("Skipped", "skipped_iterations"),
        ),
    )
    MEMORY = Table(
        "Memory",
        "logs",
        (
            Column("Log", "path"),
            Column("Peak allocated (GB)", lambda log: log.memory.peak_allocated_bytes, GIGABYTES, 2),
            Column("Peak reserved (GB)", lambda log: log.memory.peak_reserved_bytes, GIGABYTES, 2),
            Column("Used (GB)", lambda log: log.memory.used_bytes, GIGABYTES, 2),
            Column("Device (GB)", lambda log: log.memory.total_bytes, GIGABYTES, 2),
            Column("Out of memory", lambda log: log.oom or "no"),
        ),
    )
    SAVES = Table(
        "Checkpoint saves",
        "logs",
        (
            Column("Log", lambda row: row[0]),
            Column("Iteration", lambda row: row[1].iteration),
            Column("Time", lambda row: row[1].seconds, format_seconds),
            Column("Source", lambda row: row[1].source),
            Column("Path", lambda row: row[1].path),
        ),
    )

    BENCHMARKS = Table(
        "MLPerf",
        "logs",
        (
            Column("Log", "path"),
            Column("Run (s)", lambda log: log.benchmark.run_s, decimals=3),
            Column("Warm-up (s)", lambda log: log.benchmark.warmup_s, decimals=3),
            Column("Iterations", lambda log: log.benchmark.iterations),
            Column("Evaluation", lambda log: _change(log.benchmark.evaluation)),
            Column("Target", lambda log: log.benchmark.target, decimals=3),
        ),
    )

    def sections(self) -> tuple[Section, ...]:
        """Speed and set-up; benchmarks, memory, saves and flags of the logs that have some."""
        parts = [self.SPEED.section(self.logs, self._notes()), self.SETUP.section(self.logs)]
        memory = [log for log in self.logs if log.oom or log.memory != LoggedMemory(None, None, None, None)]
        saves = [(log.path, save) for log in self.logs for save in log.checkpoints]
        flags = tuple(f"{log.path}: {flag}" for log in self.logs for flag in log.flags)
        benchmarks = [log for log in self.logs if log.benchmark]
        parts += [self.BENCHMARKS.section(benchmarks)] if benchmarks else []
        parts += [self.MEMORY.section(memory)] if memory else []
        parts += [self.SAVES.section(saves)] if saves else []
        parts += [Section("Flags", notes=flags)] if flags else []
        return tuple(parts)

    def _notes(self) -> tuple[str, ...]:
        left_out = [log.times.left_out for log in self.logs]
        warmups = sum(each.warmup for each in left_out)
        evaluations, saves = sum(each.evaluation for each in left_out), sum(each.save for each in left_out)
        text = f"Steady state: {warmups} warm-up records at the starts of runs are excluded"
        if evaluations or saves:
            text += f", and {evaluations} whose time contains an evaluation, {saves} a checkpoint save"
        assumed = ", ".join(sorted({assumption for log in self.logs for assumption in log.setup.assumed}))
        return (
            f"{text}; `mean_all_s` in JSON is over all records.",
            *((f"Assumptions, where neither the log nor its name states a value: {assumed}.",) if assumed else ()),
            "TFLOPs by convention `bigscience`, from the median; samples/s is batch over median.",
            *self._without_tflops(),
            *(f"{log.path}: {log.status}, {log.reason}." for log in self.logs if log.reason),
        )

    def _without_tflops(self) -> Iterator[str]:
        paths: dict[str, list[str]] = {}
        for log in self.logs:
            if log.tflops_reason is not None:
                paths.setdefault(log.tflops_reason, []).append(log.path)
        for reason, of_reason in paths.items():
            named = ", ".join(of_reason) if len(of_reason) <= MOST_NAMED else format_count(len(of_reason), "log")
            yield f"No TFLOPs of {named}: {reason}."


def summarize_log(log: JobLog, overrides: Overrides | None = None) -> LogSummary:
    """Summarize one log."""
    overrides = overrides or Overrides()
    rows, memory, precision = log.iterations, log.memory, log.fact("precision")
    times = measure_step_times(log, overrides.warmup)
    setup = determine_setup(log, overrides)
    samples_per_s = _samples_per_s(log, setup, times)
    status, reason = _status(log, times)
    tflops, why_none = (None, None) if times.median_s is None else _tflops(log, setup, times.median_s)
    numbers = rows.iteration.compressed()
    logged = Logged(
        *(
            _steady_median(log, figures)
            for figures in (rows.samples_per_s, rows.tokens_per_s_per_gpu, rows.tflops_per_gpu)
        )
    )
    tokens_per_s = None if samples_per_s is None or setup.seq_len is None else samples_per_s * setup.seq_len
    return LogSummary(
        log=log,
        times=times,
        setup=setup,
        path=log.path,
        framework=log.framework,
        status=status,
        reason=reason,
        iterations=_iterations(log),
        records=len(rows),
        first_iteration=int(numbers[0]) if len(numbers) else None,
        last_iteration=int(numbers[-1]) if len(numbers) else None,
        train_iterations=log.number("train_iterations"),
        complete=log.complete,
        time_source=log.time_source,
        restarts=int(rows.attempt.max()) if len(rows) else 0,
        redone_iterations=log.redone,
        samples_per_s=samples_per_s,
        tokens_per_s=_steady_median(log, rows.tokens_per_s) if tokens_per_s is None else tokens_per_s,
        tflops_per_gpu=tflops,
        tflops_reason=why_none,
        logged=logged,
        **{name: log.number(name) for name in ("layers", "hidden", "heads", "vocab")},
        precision=None if precision is None else str(precision.value),
        loss=_losses_of(log),
        loss_scale=_first_and_last(rows.loss_scale.compressed()),
        skipped_iterations=max(int(rows.skipped.sum()), log.number("skipped_total") or 0),
        nan_iterations=int(rows.nan.sum()),
        memory=LoggedMemory(memory.allocated_bytes, memory.reserved_bytes, memory.used_bytes, memory.total_bytes),
        oom=log.out_of_memory,
        checkpoints=tuple(
            LoggedSave(
                save.iteration,
                None if save.wall_ns is None else save.wall_ns / NS_PER_S,
                save.source,
                save.path,
                save.asynchronous,
                None if save.drained_ns is None else save.drained_ns / NS_PER_S,
            )
            for save in log.saves
        ),
        timers_ms={timer.name: LoggedTimer(timer.mean_ns / NS_PER_MS, timer.lines) for timer in log.timers},
        benchmark=_benchmark(log),
        flags=find_flags(log, setup, times.median_s),
    )


def _iterations(log: JobLog) -> int | None:
    is_unnumbered = any(log.fact(name) is not None for name in ("unnumbered_runs", "finished_runs"))
    if log.mixture is not None or (is_unnumbered and log.iterations.iteration.count() == 0):
        return None
    return int(log.iterations.new.sum())


def _losses_of(log: JobLog) -> FirstAndLast | None:
    losses = log.iterations.loss.compressed()
    first = log.fact("first_loss") if log.mixture is None else None
    if first is not None and isinstance(first.value, float):
        losses = np.concatenate(([first.value], losses))
    return _first_and_last(losses)


def _first_and_last(values: npt.NDArray[np.float64]) -> FirstAndLast | None:
    return FirstAndLast(float(values[0]), float(values[-1])) if len(values) else None


def _samples_per_s(log: JobLog, setup: TrainingSetup, times: LoggedStepTimes) -> float | None:
    """Samples a second: batch over median time, or all samples over all time where the batch grew."""
    rows = log.iterations
    used = steady_records(rows, None) & ~np.ma.getmaskarray(rows.samples)
    batches = np.ma.getdata(rows.samples)[used]
    if len(batches) and batches.min() != batches.max():
        return float(batches.sum() / (np.ma.getdata(rows.wall_ns)[used].sum() / NS_PER_S))
    if log.mixture is not None:
        return None
    if setup.gbs is not None and times.median_s:
        return setup.gbs / times.median_s
    stated, total = _steady_median(log, rows.samples_per_s), log.fact("stated_samples_per_s")
    if stated is None and total is not None and isinstance(total.value, float):
        return total.value
    others = (source.samples_per_s for source in log.other_sources if source.samples_per_s is not None)
    return next(others, None) if stated is None else stated


def _steady_median(log: JobLog, figures: MaskedFloat64) -> float | None:
    """The median of a figure over the records that the step time is over; where none has a time, all but warm-up."""
    if not figures.count():
        return None
    steady = steady_records(log.iterations, None)
    settled = ~warmup_records(log.iterations, None)
    return median(figures[steady if steady.any() else settled if settled.any() else ~settled])


def _benchmark(log: JobLog) -> BenchmarkRun | None:
    names = ("run_s", "warmup_s", "first_evaluation", "last_evaluation", "target_evaluation")
    facts = [log.fact(name) for name in names]
    values = [fact.value if fact is not None and isinstance(fact.value, float) else None for fact in facts]
    run_s, warmup_s, first, last, target = values
    evaluation = None if first is None or last is None else FirstAndLast(first, last)
    if evaluation is None and run_s is None:
        return None
    return BenchmarkRun(run_s, warmup_s, log.number("run_iterations"), evaluation, target)


def _tflops(log: JobLog, setup: TrainingSetup, median_s: float) -> tuple[float | None, str | None]:
    """The TFLOPs of each GPU in a step of a known time, or why there are none."""
    trained = log.fact("trained")
    if trained is not None and trained.value == "lora":
        return None, "LoRA computes no gradients of frozen weights, which `bigscience` counts"
    parameters, gpus, gbs, seq_len = setup.parameters, setup.gpus, setup.gbs, setup.seq_len
    checkpointing = setup.checkpointing
    if parameters is None or gpus is None or gbs is None or seq_len is None or checkpointing is None:
        options = ("--size", "--gpus", "--gbs", "--seq-len", "--checkpointing")
        needed = zip(options, (parameters, gpus, gbs, seq_len, checkpointing), strict=True)
        return None, f"{', '.join(option for option, value in needed if value is None)} unknown"
    operations = bigscience(parameters, checkpointing) * gbs * seq_len
    return operations / (round(median_s * NS_PER_S) / NS_PER_S) / gpus / TERA, None


def _status(log: JobLog, times: LoggedStepTimes) -> tuple[str, str | None]:
    if len(log.iterations) or log.mixture is not None:
        no_time = "the log does not state the time of an iteration" if times.mean_all_s is None else None
        mixed = None if log.mixture is None else f"{log.mixture}: no figure is of one job"
        return ("ok", mixed or no_time) if log.ended is None else ("incomplete", log.ended)
    if log.fact("finished_runs") is not None:
        return "ok", "the log states the time of the run, but not its number of steps"
    if log.fact("first_loss") is not None:
        return "incomplete", log.ended or "the log states losses, but neither the number of steps nor their time"
    if log.framework is None and not log.names_run and not log.unreadable and log.ended is None:
        return "unrecognised", "no line matches a known framework"
    if log.unreadable:
        return "fail", f"{log.unreadable} iteration records hold no readable time"
    return "fail", "no iteration was logged" + (f": {log.ended}" if log.ended is not None else "")
