"""What in a log contradicts itself, its name, or arithmetic.

Each doubt is one line ``code: sentence`` with both figures, so that a reader can judge who is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfscope.analyzers.logs.setup import TrainingSetup
from perfscope.constants import GIB, GIGA, NS_PER_S
from perfscope.tables.joblog import JobLog

_TOLERANCE = 0.02
_LAST_DIGIT = 0.0006
_OTHER_TOLERANCE = 0.05
_TFLOPS_TOLERANCE = 0.4
_SLOW = 3.0
_SIZE_TOLERANCE = 0.03
_LOWER_BOUND = "DeepSpeed's timers"
_FROM_NAME = ("gpus", "tp", "pp", "dp", "gas", "mbs", "gbs", "zero_stage", "nodes")


def find_flags(log: JobLog, setup: TrainingSetup, median_s: float | None, tflops: float | None) -> tuple[str, ...]:
    """Every doubt about one log."""
    return (
        *_logged_speed(log, setup.samples),
        *_logged_tokens(log, setup),
        *_other_sources(log, median_s, setup.samples),
        *_logged_tflops(log, tflops),
        *_batch(log, setup.samples),
        *_name(log, setup.parameters),
        *_shape(log, median_s),
        *log.remarks,
    )


def _logged_speed(log: JobLog, samples: int | None) -> Iterator[str]:
    rows = log.iterations
    timed = ~np.ma.getmaskarray(rows.wall_ns) & ~np.ma.getmaskarray(rows.samples_per_s) & (rows.disturbed == "")
    stated = np.ma.getdata(rows.samples_per_s)[timed]
    batch = np.where(np.ma.getmaskarray(rows.samples), samples or 0, np.ma.getdata(rows.samples))[timed]
    right = batch / (np.ma.getdata(rows.wall_ns)[timed] / NS_PER_S)
    wrong = (right > 0) & (np.abs(stated - right) > _TOLERANCE * right + _LAST_DIGIT)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        yield (
            f"throughput-disagrees: the log states {stated[first]:.4g} samples/s where batch / time is "
            f"{right[first]:.4g} (x {stated[first] / right[first]:.3g}), in {int(wrong.sum())} of {len(wrong)} records"
            + _why(log, stated[first])
        )


def _why(log: JobLog, stated: float) -> str:
    """Hugging Face divides its examples by the run time; where the last batch is not full, those are fewer."""
    examples, epochs = log.number("examples"), log.number("epochs") or 1
    rows = log.iterations
    if examples is None or len(rows) != 1:
        return ""
    seconds = int(rows.span[0]) * int(np.ma.getdata(rows.wall_ns)[0]) / NS_PER_S
    if abs(examples * epochs / seconds - stated) > _TOLERANCE * stated:
        return ""
    return f": it counts {examples * epochs} examples in {rows.span[0]} steps, whose last batch is not full"


def _other_sources(log: JobLog, median_s: float | None, samples: int | None) -> Iterator[str]:
    for other in log.others:
        if other.samples_per_s is not None and samples is not None and median_s:
            right = samples / median_s
            if abs(other.samples_per_s - right) > _OTHER_TOLERANCE * right:
                yield (
                    f"throughput-disagrees: {other.source} gives {other.samples_per_s:.4g} samples/s where "
                    f"batch / time is {right:.4g} (x {other.samples_per_s / right:.3g})"
                )
        elif other.wall_ns is not None and median_s:
            seconds = other.wall_ns / NS_PER_S
            is_bound = other.source.startswith(_LOWER_BOUND) and seconds < median_s
            if abs(seconds - median_s) > _OTHER_TOLERANCE * median_s and not is_bound:
                yield (
                    f"time-disagrees: an iteration takes {median_s:.4g} s by {log.time_source}, "
                    f"{seconds:.4g} s by {other.source}"
                )


def _logged_tokens(log: JobLog, setup: TrainingSetup) -> Iterator[str]:
    """Tokens a second of a GPU, where they count whole sequences: not in gluon-nlp, which counts valid tokens."""
    rows = log.iterations
    if log.framework == "gluon-nlp" or not (setup.samples and setup.seq_len and setup.gpus):
        return
    timed = ~np.ma.getmaskarray(rows.wall_ns) & ~np.ma.getmaskarray(rows.tokens_per_s_per_gpu)
    timed &= rows.disturbed == ""
    if not timed.any():
        return
    stated = float(np.median(np.ma.getdata(rows.tokens_per_s_per_gpu)[timed]))
    seconds = float(np.median(np.ma.getdata(rows.wall_ns)[timed])) / NS_PER_S
    right = setup.samples * setup.seq_len / seconds / setup.gpus
    if abs(stated - right) > _OTHER_TOLERANCE * right:
        yield (
            f"throughput-disagrees: the log states {stated:.5g} tokens/s a GPU where batch x sequence / time / GPUs is "
            f"{right:.5g} (x {stated / right:.3g})"
        )


def _logged_tflops(log: JobLog, tflops: float | None) -> Iterator[str]:
    stated = log.iterations.tflops_per_gpu.compressed()
    if tflops and len(stated):
        middle = float(np.median(stated))
        if abs(middle - tflops) > _TFLOPS_TOLERANCE * tflops:
            yield (
                f"tflops-disagree: the log states {middle:.4g} TFLOPs per GPU where the bigscience convention gives "
                f"{tflops:.4g}; conventions differ by less"
            )


def _batch(log: JobLog, samples: int | None) -> Iterator[str]:
    micro, accumulated, replicas = (log.number(name) for name in ("mbs", "gas", "dp"))
    if micro and accumulated and replicas and samples and micro * accumulated * replicas != samples:
        yield (
            f"batch-contradicts: micro-batch {micro} x accumulation {accumulated} x data parallel {replicas} is "
            f"{micro * accumulated * replicas}, the global batch is {samples}"
        )
    grown = np.unique(log.iterations.samples.compressed())
    if len(grown) > 1:
        yield f"batch-ramp-up: the batch goes from {grown[0]} to {grown[-1]}; throughput is all samples over time"


def _name(log: JobLog, parameters: int | None) -> Iterator[str]:
    for name in _FROM_NAME:
        facts = log.facts.get(name, ())
        named = next((fact.value for fact in facts if fact.source == "name"), None)
        if named is not None and facts[0].value != named:
            yield f"name-disagrees: the file's name says {name} {named}, the {facts[0].source} {facts[0].value}"
    line = log.fact("model_size_line")
    if line is not None and isinstance(line.value, int | float):
        true = line.value * GIB / GIGA
        yield (
            f"size-unit: 'Model size: {line.value:g}B' may count B as 2**30, which older scripts did; "
            f"that would be {true:.3g}B of 10**9"
        )
    sizes = log.facts.get("parameters", ())
    size = next((fact.value for fact in sizes if fact.source == "name"), None)
    if isinstance(size, int) and parameters and abs(size - parameters) > _SIZE_TOLERANCE * parameters:
        yield (
            f"name-disagrees: the file's name says {size / GIGA:.4g}B parameters, the log {parameters / GIGA:.4g}B"
            + ("; the name's B is 2**30" if abs(size * GIB / GIGA / parameters - 1) < _TOLERANCE else "")
        )


def _shape(log: JobLog, median_s: float | None) -> Iterator[str]:
    rows = log.iterations
    if median_s:
        seconds = np.ma.getdata(rows.wall_ns) / NS_PER_S
        slow = ~np.ma.getmaskarray(rows.wall_ns) & (seconds > _SLOW * median_s) & (rows.disturbed == "")
        slow[:1] = False
        if slow.any():
            first = int(np.flatnonzero(slow)[0])
            number = rows.iteration[first]
            where = "" if number is np.ma.masked else f", first at iteration {number}"
            yield (
                f"slow-iterations: {int(slow.sum())} took over {_SLOW:g} times the median{where} "
                f"({seconds[first]:.4g} s)"
            )
    if log.unreadable:
        yield f"unreadable: {log.unreadable} iteration records hold no readable time and are left out"
    if log.gaps:
        yield f"missing: between records iterations are missing in {log.gaps} places"
    if len(rows) and rows.attempt.max() > 0:
        yield f"restarted: {int(rows.attempt.max())} times; {log.redone} iterations were done again"
    if log.time_source is not None and log.time_source.startswith(_LOWER_BOUND):
        yield "lower-bound: the timers hold forward, backward and step, not the time between them"
    spans = np.unique(rows.span)
    if len(spans) and spans[-1] > 1:
        yield (
            f"means: a record is the mean of {int(spans[-1])} iterations; median and p95 are of those means"
            if len(rows) > 1
            else f"means: the only figure is a mean over {int(spans[-1])} iterations, warm-up among them"
        )
