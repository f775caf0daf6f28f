"""What a run's log says of its speed, recomputed.

The step time is over undisturbed iterations: the first record of every start is warm-up, and a record whose time also
holds an evaluation or a checkpoint save is left out where the framework's clock runs on through them. Throughput is the
batch over that time, never the figure that the log prints; where the two disagree, that is a finding. A run without a
single iteration is a ``fail``, as in BigScience's one-liner (experiments/gpt2.md, "Magic scripts").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from perfscope.analyzers.conventions import Checkpointing
from perfscope.analyzers.flops import Throughput
from perfscope.analyzers.log_flags import flags_of
from perfscope.analyzers.medians import Counted, counted, merged
from perfscope.report import Json
from perfscope.tables.joblog import Iterations, JobLog, Save, Timer

_NS_PER_S = 1e9
_ASSUMED_GPUS = 64
_ASSUMED_SEQ_LEN = 1024
_LEAST_SHARE_LEFT = 0.5
_B = 10**9


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says about the runs; it goes before what logs and names say.

    Attributes:
        parameters, gpus, seq_len, samples: Size of the model, GPUs of the job, tokens in a sequence, global batch.
        checkpointing: Which activations are recomputed.
        warmup: Iterations of every start that are left out; absent for one record.
    """

    parameters: int | None = None
    gpus: int | None = None
    seq_len: int | None = None
    samples: int | None = None
    checkpointing: Checkpointing | None = None
    warmup: int | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """The time of an iteration.

    Attributes:
        records: Records that the figures are over.
        median_s, p95_s, mean_s, min_s, max_s: Over those.
        median_interval_s: Bootstrap interval of the median; absent of fewer than three records.
        first_s: The first record.
        mean_all_s: Over all iterations, warm-up and disturbed ones too, as the seed's one-liner has it.
        warmup: Records left out as warm-up.
        evaluation, save: Records left out because their time holds one.
    """

    records: int
    median_s: float | None
    p95_s: float | None
    mean_s: float | None
    min_s: float | None
    max_s: float | None
    median_interval_s: tuple[float, float] | None
    first_s: float | None
    mean_all_s: float | None
    warmup: int
    evaluation: int
    save: int


@dataclass(frozen=True, slots=True)
class Work:
    """Model, batch and layout of a run, each absent where nothing tells it, and what was assumed."""

    parameters: int | None
    parameters_source: str | None
    gpus: int | None
    seq_len: int | None
    samples: int | None
    checkpointing: Checkpointing | None
    assumed: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class LogSummary:
    """One log, summarised.

    Attributes:
        path: The file.
        framework: What wrote it.
        status: ``ok``, ``incomplete`` (it ended badly after iterations), ``fail`` (not one iteration) or
            ``unrecognised``.
        reason: Why it is not ``ok``, or why it has no step time.
        log: The table.
        times: The time of an iteration.
        work: Model, batch and layout.
        samples_per_s: Batch over the median time.
        tflops_per_gpu: By the BigScience convention, from the median time.
        flags: Doubts: ``code: sentence``.
    """

    path: str
    framework: str | None
    status: str
    reason: str | None
    log: JobLog
    times: Times
    work: Work
    samples_per_s: float | None
    tflops_per_gpu: float | None
    flags: tuple[str, ...]

    @property
    def iterations(self) -> int:
        """Iterations that the log's records stand for."""
        folded = self.log.folded.iterations if self.log.folded else 0
        return int(self.log.iterations.span.sum()) + folded

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second over all GPUs."""
        if self.samples_per_s is None or self.work.seq_len is None:
            return _median(self.log.iterations.tokens_per_s)
        return self.samples_per_s * self.work.seq_len

    @property
    def logged_tflops_per_gpu(self) -> float | None:
        """TFLOPs per GPU as the log states them, in its own convention."""
        return _median(self.log.iterations.tflops_per_gpu)

    def data(self) -> dict[str, Json]:
        """The log's entry in ``logs``."""
        return {
            "path": self.path,
            "framework": self.framework,
            "status": self.status,
            "reason": self.reason,
            "iterations": self.iterations,
            **_times(self.times, self.log),
            "samples_per_s": self.samples_per_s,
            "tokens_per_s": self.tokens_per_s,
            "tflops_per_gpu": self.tflops_per_gpu,
            "logged": {
                "samples_per_s": _median(self.log.iterations.samples_per_s),
                "tokens_per_s_per_gpu": _median(self.log.iterations.tokens_per_s_per_gpu),
                "tflops_per_gpu": self.logged_tflops_per_gpu,
            },
            **_work(self.work, self.log),
            **_training(self.log),
            "memory": {
                "peak_allocated_bytes": self.log.memory.allocated_bytes,
                "peak_reserved_bytes": self.log.memory.reserved_bytes,
                "used_bytes": self.log.memory.used_bytes,
                "total_bytes": self.log.memory.total_bytes,
            },
            "oom": self.log.out_of_memory,
            "checkpoints": [_save(save) for save in self.log.saves],
            "timers_ms": {timer.name: _timer(timer) for timer in self.log.timers},
            "assumed": list(self.work.assumed),
            "flags": list(self.flags),
        }


def analyze(log: JobLog, given: Given | None = None) -> LogSummary:
    """Summarise one log."""
    given = given or Given()
    times = _time(log, given.warmup)
    work = _know(log, given)
    samples_per_s = _speed(log, work, times)
    status, reason = _status(log, times)
    tflops = _tflops(work, times)
    return LogSummary(
        path=log.path,
        framework=log.framework,
        status=status,
        reason=reason,
        log=log,
        times=times,
        work=work,
        samples_per_s=samples_per_s,
        tflops_per_gpu=tflops,
        flags=flags_of(log, times.median_s, work.samples, work.parameters, tflops),
    )


def undisturbed(rows: Iterations, warmup: int | None) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which records count: timed ones, less warm-up, less disturbed ones unless those are most of them.

    ``warmup`` is a number of iterations of every start; None leaves out one record.
    """
    timed = ~np.ma.getmaskarray(rows.wall_ns)
    settled = timed & ~warming(rows, warmup)
    if not settled.any():
        return timed if warmup is None else settled
    quiet = settled & (rows.disturbed == "")
    return quiet if quiet.sum() >= _LEAST_SHARE_LEFT * settled.sum() else settled


def warming(rows: Iterations, warmup: int | None) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which records are warm-up."""
    flags = np.zeros(len(rows), np.bool_)
    for attempt in np.unique(rows.attempt):
        places = np.flatnonzero(rows.attempt == attempt)
        if warmup is None:
            flags[places[:1]] = True
        else:
            flags[places[np.cumsum(rows.span[places]) <= warmup]] = True
    return flags


def _time(log: JobLog, warmup: int | None) -> Times:
    rows = log.iterations
    used = undisturbed(rows, warmup)
    warm = warming(rows, warmup) & ~used
    seconds = counted(np.ma.getdata(rows.wall_ns)[used] / _NS_PER_S)
    values = seconds if log.folded is None else merged(seconds, _folded(log, warmup))
    left_out = ~used & ~warm
    timed = rows.wall_ns.compressed()
    return Times(
        records=values.n,
        median_s=values.median(),
        p95_s=values.quantile(0.95),
        mean_s=values.mean(),
        min_s=values.quantile(0.0),
        max_s=values.quantile(1.0),
        median_interval_s=values.median_interval(),
        first_s=float(timed[0]) / _NS_PER_S if len(timed) else None,
        mean_all_s=_mean_of_all(log),
        warmup=int(warm.sum()) + (len(log.folded.warmups) if log.folded else 0),
        evaluation=int((left_out & (rows.disturbed == "evaluation")).sum()),
        save=int((left_out & (rows.disturbed == "save")).sum()),
    )


def _folded(log: JobLog, warmup: int | None) -> Counted:
    assert log.folded is not None
    folded = Counted(log.folded.wall_ns / _NS_PER_S, log.folded.count)
    warmups = log.folded.warmups
    return folded if warmup is None or not warmups else merged(folded, counted(np.asarray(warmups) / _NS_PER_S))


def _mean_of_all(log: JobLog) -> float | None:
    rows = log.iterations
    timed = ~np.ma.getmaskarray(rows.wall_ns)
    total = int((np.ma.getdata(rows.wall_ns)[timed] * rows.span[timed]).sum())
    count = int(rows.span[timed].sum())
    if log.folded is not None:
        total, count = total + log.folded.wall_total_ns, count + log.folded.iterations
    return total / count / _NS_PER_S if count else None


def _know(log: JobLog, given: Given) -> Work:
    parameters, source = _parameters(log, given)
    gpus = given.gpus or _gpus(log)
    seq_len = given.seq_len or log.number("seq_len")
    samples = given.samples or _samples(log)
    checkpointing = given.checkpointing or _checkpointing(log)
    assumed: list[str] = []
    # A benchmark's name gives size and batch alone; what the seed's one-liner then takes for granted is said beside it.
    if source == "name" and samples is not None:
        if gpus is None:
            gpus = _ASSUMED_GPUS
            assumed.append(f"{gpus} GPUs (--gpus)")
        if seq_len is None:
            seq_len = _ASSUMED_SEQ_LEN
            assumed.append(f"sequence length {seq_len} (--seq-len)")
        if checkpointing is None:
            checkpointing = Checkpointing.FULL
            assumed.append("activation checkpointing full (--checkpointing)")
    return Work(parameters, source, gpus, seq_len, samples, checkpointing, tuple(assumed))


def _parameters(log: JobLog, given: Given) -> tuple[int | None, str | None]:
    if given.parameters is not None:
        return given.parameters, "given"
    stated = log.fact("parameters")
    if stated is not None and stated.source == "log" and log.fact("parameters_rounded") is None:
        return log.number("parameters"), "log"
    counted_up = dense_parameters(log)
    if counted_up is not None:
        return counted_up, "arguments"
    if stated is not None and stated.source == "log":
        return log.number("parameters"), "log, rounded"
    if log.number("parameters_of_shards") is not None:
        return log.number("parameters_of_shards"), "log, sum of the shards"
    return log.number("parameters"), stated.source if stated else None


def dense_parameters(log: JobLog) -> int | None:
    """Parameters of a plain GPT from its dimensions; None where they are unknown or the model is another.

    Source: bigscience-workshop/bigscience, experiments/gpt2.md: ``l(12h^2 + 13h) + vh + sh + 2h``.
    """
    layers, hidden, vocab, seq_len = (log.number(name) for name in ("layers", "hidden", "vocab", "seq_len"))
    if layers is None or hidden is None or vocab is None or seq_len is None:
        return None
    if any(log.fact(name) is not None and log.fact(name).value for name in _NOT_PLAIN):  # type: ignore[union-attr]
        return None
    if log.number("ffn") not in (None, 4 * hidden):
        return None
    return layers * (12 * hidden**2 + 13 * hidden) + vocab * hidden + seq_len * hidden + 2 * hidden


_NOT_PLAIN = ("swiglu", "group_query_attention", "experts", "untie_embeddings_and_output_weights")


def _gpus(log: JobLog) -> int | None:
    stated = log.number("gpus")
    if stated is not None:
        return stated
    sizes = [log.number(name) for name in ("tp", "pp", "dp")]
    if all(size is not None for size in sizes):
        return int(np.prod([size or 1 for size in sizes]) * (log.number("cp") or 1))
    return None


def _samples(log: JobLog) -> int | None:
    """The global batch: what the records state, else what the set-up states, else the product of its parts."""
    stated = log.iterations.samples.compressed()
    if len(stated):
        values, counts = np.unique(stated, return_counts=True)
        return int(values[np.argmax(counts)])
    whole = log.number("gbs")
    if whole is not None:
        return whole
    micro, accumulated = log.number("mbs"), log.number("gas")
    replicas = log.number("dp") or _replicas(log)
    if micro is None or replicas is None:
        return None
    return micro * replicas * (accumulated or 1)


def _replicas(log: JobLog) -> int | None:
    gpus = log.number("gpus")
    if gpus is None:
        return None
    return gpus // ((log.number("tp") or 1) * (log.number("pp") or 1) * (log.number("cp") or 1)) or None


def _checkpointing(log: JobLog) -> Checkpointing | None:
    fact = log.fact("checkpointing")
    known = {str(kind) for kind in Checkpointing}
    return Checkpointing(fact.value) if fact is not None and fact.value in known else None


def _speed(log: JobLog, work: Work, times: Times) -> float | None:
    """Samples a second: batch over median time, or all samples over all time where the batch grew."""
    rows = log.iterations
    used = undisturbed(rows, None) & ~np.ma.getmaskarray(rows.samples)
    batches = np.ma.getdata(rows.samples)[used]
    if len(batches) and batches.min() != batches.max():
        return float(batches.sum() / (np.ma.getdata(rows.wall_ns)[used].sum() / _NS_PER_S))
    if work.samples is not None and times.median_s:
        return work.samples / times.median_s
    return _median(rows.samples_per_s)


def _tflops(work: Work, times: Times) -> float | None:
    known = (work.parameters, work.samples, work.gpus, work.seq_len)
    if times.median_s is None or work.checkpointing is None or any(value is None for value in known):
        return None
    return Throughput(
        parameters=work.parameters or 0,
        samples=work.samples or 0,
        step_ns=round(times.median_s * _NS_PER_S),
        gpus=work.gpus or 0,
        seq_len=work.seq_len or 0,
        checkpointing=work.checkpointing,
    ).tflops_per_gpu


def _status(log: JobLog, times: Times) -> tuple[str, str | None]:
    if len(log.iterations):
        if log.ended is not None:
            return "incomplete", log.ended
        return "ok", None if times.mean_all_s is not None else "the log does not tell the time of an iteration"
    if log.unreadable:
        return "fail", f"{log.unreadable} iteration records hold no readable time"
    if log.ended is not None:
        return "fail", f"no iteration was logged: {log.ended}"
    if log.framework is not None or log.names_run:
        return "fail", "no iteration was logged"
    return "unrecognised", "nothing in it is known to be a training log"


def _times(times: Times, log: JobLog) -> dict[str, Json]:
    rows = log.iterations
    numbers = rows.iteration.compressed()
    last = log.folded.last_iteration if log.folded else int(numbers[-1]) if len(numbers) else None
    interval = times.median_interval_s
    return {
        "records": len(rows) + (log.folded.records if log.folded else 0),
        "first_iteration": int(numbers[0]) if len(numbers) else None,
        "last_iteration": last,
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


def _work(work: Work, log: JobLog) -> dict[str, Json]:
    names = ("nodes", "tp", "pp", "dp", "cp", "ep", "gas", "mbs", "zero_stage", "layers", "hidden", "heads", "vocab")
    precision = log.fact("precision")
    return {
        "parameters": work.parameters,
        "parameters_source": work.parameters_source,
        "size": None if work.parameters is None else f"{work.parameters / _B:.4g}B",
        "gpus": work.gpus,
        "seq_len": work.seq_len,
        "global_batch_size": work.samples,
        "gbs": work.samples,
        **{name: log.number(name) for name in names},
        "precision": None if precision is None else str(precision.value),
        "checkpointing": None if work.checkpointing is None else str(work.checkpointing),
    }


def _training(log: JobLog) -> dict[str, Json]:
    rows = log.iterations
    folded = log.folded
    losses, scales = rows.loss.compressed(), rows.loss_scale.compressed()
    return {
        "loss": _ends(losses, folded.last_loss if folded else None),
        "loss_scale": _ends(scales, folded.last_loss_scale if folded else None),
        "skipped_iterations": _skipped(log),
        "nan_iterations": int(rows.nan.sum()) + (folded.nan if folded else 0),
    }


def _skipped(log: JobLog) -> int:
    stated = int(log.iterations.skipped.sum()) + (log.folded.skipped if log.folded else 0)
    return max(stated, log.number("skipped_total") or 0)


def _ends(values: np.ndarray[tuple[int], np.dtype[np.float64]], last: float | None) -> Mapping[str, Json] | None:
    if not len(values):
        return None
    return {"first": float(values[0]), "last": float(values[-1]) if last is None else last}


def _save(save: Save) -> dict[str, Json]:
    seconds = None if save.wall_ns is None else save.wall_ns / _NS_PER_S
    return {
        "iteration": save.iteration,
        "seconds": seconds,
        "source": save.source,
        "path": save.path,
        "asynchronous": save.asynchronous,
    }


def _timer(timer: Timer) -> dict[str, Json]:
    return {"mean": timer.mean_ns / 1e6, "lines": timer.lines}


def _median(column: np.ma.MaskedArray) -> float | None:
    known = column.compressed()
    return float(np.median(known)) if len(known) else None
