"""DeepSpeed's own lines, from 0.3 to today: throughput, pipeline, step and launch lines.

``SamplesPerSec`` of 0.3, and ``RunningAvgSamplesPerSec`` today, is a mean from the third step on, not the speed of the
moment; the speed since the line before is worked out of two such means. Lines that jump about as no mean does are taken
as they are. It counts samples of the whole job. With gradient accumulation some versions count micro-steps, so the
figure is compared with every other source in the log.
"""

from __future__ import annotations

import re

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.draft import (
    Draft,
    Hit,
    Rule,
    label_of,
    mention,
    number,
)
from perfscope.sources.joblog.series import Record
from perfscope.sources.joblog.stamps import add_stamped

THROUGHPUT = "batch / SamplesPerSec"
PIPELINE = "DeepSpeed's pipeline: iter time"
STEPS = "dates of DeepSpeed's step lines"

_UNTIMED_STEPS = 2
_HALF_A_MS = 0.0005
_SURE = 0.4
_MEANS = "means of SamplesPerSec"
_AS_PRINTED = "SamplesPerSec as it is printed"
_FEWEST_LINES = 12
_SETTLED = 0.6


def _samples_per_second(draft: Draft, hit: Hit) -> None:
    draft.evidence["deepspeed"] += 1
    step, mean = int(hit["new"] or hit["old"]), number(hit["mean"])
    now = number(hit["now"])
    if mean is None or mean <= 0:
        draft.unreadable += 1
        return
    label = label_of(hit.text, hit.line)
    if now is None:
        draft.of(_AS_PRINTED).add(Record(iteration=step, samples_per_s=mean), label)
        now = _since_last(draft, step, mean) if hit["epoch"] in (b"", b"0") else mean
    draft.of(THROUGHPUT).add(Record(iteration=step, samples_per_s=now), label)


def _since_last(draft: Draft, step: int, mean: float) -> float:
    """Samples a second since the line before: means m1 at step n1 and m2 at n2 count the steps n - 2."""
    known = draft.scratch.get(_MEANS)
    draft.scratch[_MEANS] = (step, mean)
    if not isinstance(known, tuple) or known[0] >= step or step <= _UNTIMED_STEPS:
        return mean
    before, mean_before = known
    spent = (step - _UNTIMED_STEPS) / mean - max(before - _UNTIMED_STEPS, 0) / mean_before
    return (step - before) / spent if spent > 0 else mean


def close(draft: Draft) -> None:
    """Decide whether the lines are running means: those move ever less, as one step is ever less of them."""
    printed = draft.series.pop(_AS_PRINTED, None)
    if printed is None or len(printed) < _FEWEST_LINES:
        return
    speeds = printed.iterations(1).samples_per_s.compressed()
    moves = np.abs(np.diff(speeds))
    third = len(moves) // 3
    early, late = float(moves[:third].mean()), float(moves[-third:].mean())
    if late > _SETTLED * early:
        draft.series[THROUGHPUT] = printed


def _pipeline(draft: Draft, hit: Hit) -> None:
    draft.evidence["deepspeed"] += 1
    seconds, speed = number(hit["seconds"]), number(hit["speed"])
    if seconds is None or seconds <= 0:
        draft.unreadable += 1
        return
    record = Record(int(hit["step"]), round(seconds * NS_PER_S), samples_per_s=speed, loss=number(hit["loss"]))
    if speed is not None and speed > 0:
        _sharpen(draft, record, seconds, speed)
    draft.of(PIPELINE).add(record, label_of(hit.text, hit.line))


def _sharpen(draft: Draft, record: Record, seconds: float, speed: float) -> None:
    """Batch = time x speed, where the time's three decimals leave one whole number; the speed has more digits."""
    batch = round(seconds * speed)
    if batch > 0 and _HALF_A_MS * speed < _SURE and abs(batch / speed - seconds) <= _HALF_A_MS * 1.01:
        record.samples, record.wall_ns = batch, round(batch / speed * NS_PER_S)
        draft.note("gbs", batch, "records")


def _step(draft: Draft, hit: Hit) -> None:
    draft.evidence["deepspeed"] += 1
    if add_stamped(draft, STEPS, hit, Record(iteration=int(hit[1]))):
        draft.note("skipped_total", int(hit[2]), "log")


def _started(draft: Draft, hit: Hit) -> None:
    draft.evidence["deepspeed"] += 1
    draft.note("deepspeed_version", hit[1].decode(errors="replace"), "log")
    draft.restart()


RULES = (
    Rule(
        b"SamplesPerSec=",
        re.compile(
            rb"(?:global_step=(?P<new>\d+)|\b(?P<epoch>\d+)/(?P<old>\d+)), "
            rb"(?:RunningAvg)?SamplesPerSec=(?P<mean>[^,\s]+)"
            rb"(?:, *CurrSamplesPerSec=(?P<now>[^,\s]+))?"
        ),
        _samples_per_second,
    ),
    Rule(
        b"iter time (s):",
        re.compile(
            rb"steps: (?P<step>\d+) loss: (?P<loss>\S+).*? iter time \(s\): (?P<seconds>[^,\s]+)"
            rb"(?:,? samples/sec: (?P<speed>[^,\s]+))?"
        ),
        _pipeline,
    ),
    Rule(b", skipped=", re.compile(rb"\bstep=(\d+), skipped=(\d+), "), _step),
    Rule(b"DeepSpeed info: version=", re.compile(rb"DeepSpeed info: version=([^,\s]+)"), _started),
    Rule(b"[launch.py:", re.compile(rb"\[launch\.py:"), mention("deepspeed")),
    Rule(b"DeepSpeedEngine", re.compile(rb"DeepSpeedEngine"), mention("deepspeed")),
    Rule(b"Initializing torch distributed with backend", re.compile(rb"init_distributed\]"), mention("deepspeed")),
)
