"""Where a log contradicts itself, its name, or arithmetic.

Each flag is one line ``code: sentence`` with both figures, so that a reader can judge which one is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfscope.analyzers.logs.setup import TrainingSetup
from perfscope.analyzers.logs.step_times import steady_records
from perfscope.constants import GIGA, NS_PER_S
from perfscope.tables.joblog import Iterations, JobLog

_TOLERANCE = 0.02
_LAST_DIGIT = 0.0006
_SOURCE_TOLERANCE = 0.05
_SLOW = 3.0
_COARSE = 0.1
_SIZE_TOLERANCE = 0.03
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
    disagrees = (expected > 0) & (np.abs(stated - expected) > _TOLERANCE * expected + _LAST_DIGIT)
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
            if abs(source.samples_per_s - expected) > _SOURCE_TOLERANCE * expected:
                yield (
                    f"throughput-disagrees: {source.name} gives {source.samples_per_s:.4g} samples/s where "
                    f"batch / time is {expected:.4g} (x {source.samples_per_s / expected:.3g})"
                )
        elif source.wall_ns is not None and median_s:
            seconds = source.wall_ns / NS_PER_S
            is_bound = source.name.startswith(_LOWER_BOUND) and seconds < median_s
            if abs(seconds - median_s) > _SOURCE_TOLERANCE * median_s and not is_bound:
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
    if isinstance(size, int) and parameters and abs(size - parameters) > _SIZE_TOLERANCE * parameters:
        yield (f"name-disagrees: the file's name says {size / GIGA:.4g}B parameters, the log {parameters / GIGA:.4g}B")


def _check_clock(rows: Iterations, median_s: float) -> Iterator[str]:
    """A clock of whole seconds says little about a few short steps."""
    if rows.wall_resolution_ns.count():
        resolution_s = float(np.median(rows.wall_resolution_ns.compressed())) / NS_PER_S
        if resolution_s > _COARSE * median_s:
            yield f"coarse-clock: the time is {median_s:.4g} s, give or take {resolution_s:.2g} s by its last digit"


def _check_records(log: JobLog, median_s: float | None) -> Iterator[str]:
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
        yield from _check_clock(rows, median_s)
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
