"""Megatron-LM's iteration line, and those of its children: Megatron-DeepSpeed, GPT-NeoX, Megatron-core.

One line, cells between bars::

    iteration   10/  1000 | consumed samples:  40 | elapsed time per iteration (ms): 5837.9 | ...

The time is the mean over ``log_interval`` iterations. A version that dates its lines prints the first iteration of a
start by itself and counts it again in the mean of the next line. Cells come and go with the version; the unit has been
ms and s; a forerunner of one version printed ``samples per second`` a thousand times too small. A record may be glued
to another one, broken over lines, or cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.sources.joblog.draft import (
    LARGEST,
    Draft,
    Hit,
    Rule,
    label_of,
    number,
)
from perfscope.sources.joblog.series import Record, Series
from perfscope.sources.joblog.swift import Plain
from perfscope.tables.columns import Int64

SOURCE = "elapsed time per iteration"
CONSUMED = "samples consumed"

_START = re.compile(rb"iteration(?:=\s*|\s+)(\d+)\s*/\s*(\d+)\s*\|")
_TIME = re.compile(rb"e\s*lapsed[\s_]*time")
_SPACE = re.compile(rb"[\s_]+")
_BEFORE = re.compile(rb"samples/sec:\s*([\d.]+)\s*\|\s*$")
_STAMPED = re.compile(rb"\[\d{4}-\d\d-\d\d[ T][\d:.]+\]\s*$")
_OTHER_LINE = re.compile(rb"\s*(?:time \(ms\)|\[\d{4}-|\(min, max\)|\[Rank|INFO:)")
_FLOPS = re.compile(rb"\s*([\d.]+)([KMGTPE]?)FLOPS")
_PREFIXES = {b"": 1.0, b"K": 1e3, b"M": 1e6, b"G": 1e9, b"T": 1e12, b"P": 1e15, b"E": 1e18}
_LONGEST = 2000
_MOST_LINES = 12

_TIMES = {
    b"elapsedtimeperiteration(ms)": NS_PER_MS,
    b"elapsedtimeperiterationms": NS_PER_MS,
    b"elapsedtimeperiteration(s)": NS_PER_S,
    b"elapsedtimeperiterations": NS_PER_S,
}
_FLOATS = {
    b"samplespersecond": "samples_per_s",
    b"samples/sec": "samples_per_s",
    b"tokenspersecond": "tokens_per_s",
    b"tokenspergpupersecond(tgs)": "tokens_per_s_per_gpu",
    b"tokenspergpupersecondtgs": "tokens_per_s_per_gpu",
    b"tokens/s/gpu": "tokens_per_s_per_gpu",
    b"tflops": "tflops_per_gpu",
    b"throughputpergpu(tflop/s/gpu)": "tflops_per_gpu",
    b"throughput(tflop/s/gpu)": "tflops_per_gpu",
    b"computepergpu(tflop/s/gpu)": "tflops_per_gpu",
    b"lmloss": "loss",
    b"lm-loss": "loss",
    b"loss": "loss",
    b"trainloss": "loss",
    b"lossscale": "loss_scale",
}
_COUNTS = {
    b"globalbatchsize": "samples",
    b"numberofskippediterations": "skipped",
    b"numberofnaniterations": "nan",
}


_OTHERS = {b"approxflopspergpu", b"consumedsamples", b"actualseqlen"}


def read(text: bytes) -> list[tuple[int, Rule, Hit]]:
    """Find iteration records in a block, as matches of a rule that adds them."""
    starts = list(_START.finditer(text))
    found = []
    for index, match in enumerate(starts):
        limit = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        line = text.rfind(b"\n", 0, match.start()) + 1
        record = _record_text(text, match.start(), min(limit, match.start() + _LONGEST))
        if _TIME.search(record):
            found.append((match.start(), RULE, Hit(text, line, match.start() + len(record), match)))
    return found


def _record_text(text: bytes, start: int, limit: int) -> bytes:
    """A record from its start to its last bar: one line, or more where it is broken."""
    end = text.find(b"\n", start, limit)
    if end < 0:
        return text[start:limit]
    line = text[start:end]
    if line.rstrip().endswith(b"|") and b"elapsed" in line:
        return line
    for following in text[end + 1 : limit].split(b"\n", _MOST_LINES)[:_MOST_LINES]:
        if _OTHER_LINE.match(following) or (not following.strip() and b"elapsed" in line):
            break
        line += b"\n" + following
        if following.rstrip().endswith(b"|") and _TIME.search(line):
            break
    return line


def add(draft: Draft, hit: Hit) -> None:
    """Add one iteration record."""
    start = hit.match.start()
    record = Record(iteration=int(hit[1]))
    before = hit.text[hit.line : start]
    seen = _BEFORE.search(before) if b"|" in before else None
    if seen:
        record.samples_per_s = number(seen[1])
        draft.evidence["gpt-neox"] += 1
    for key, value in _cells(hit.text[start : hit.end]):
        _fill(draft, record, key, value)
    draft.evidence["megatron"] += 1
    if record.wall_ns is None:
        draft.unreadable += 1
        return
    series = draft.of(SOURCE)
    stamped = b"[" in before and _STAMPED.search(before) is not None
    series.clock_runs_on, series.starts_over = not stamped, stamped
    if series.add(record, label_of(hit.text, hit.line) if before.strip() else None):
        draft.scratch["train iterations"] = int(hit[2])


RULE = Rule(b"iteration", _START, add)


def _cells(record: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of every whole cell that matters, the key without blanks: a record may be broken anywhere."""
    for cell in record.split(b"|")[1:-1]:
        raw, colon, value = cell.rpartition(b":")
        if not colon:
            raw, _, value = cell.partition(b"=")
        key = _known_key(raw)
        if key:
            yield key, value


@lru_cache(maxsize=1024)
def _known_key(raw: bytes) -> bytes:
    """A cell's name without blanks, if anything is done with it."""
    key = _SPACE.sub(b"", raw).lower()
    return key if key in _TIMES or key in _FLOATS or key in _COUNTS or key in _OTHERS else b""


def _value(text: bytes) -> float | None:
    """A cell's number, even where the line was broken inside it."""
    try:
        value = float(text)
    except ValueError:
        return number(_SPACE.sub(b"", text))
    return value if abs(value) < LARGEST else None


def _fill(draft: Draft, record: Record, key: bytes, text: bytes) -> None:
    if key == b"approxflopspergpu":
        draft.evidence["gpt-neox"] += 1
        flops = _FLOPS.match(text.upper())
        record.tflops_per_gpu = float(flops[1]) * _PREFIXES[flops[2]] / 1e12 if flops else None
        return
    value = _value(text)
    if value is None:
        return
    if key in _TIMES:
        record.wall_ns = round(value * _TIMES[key]) if value > 0 else None
    elif key in _FLOATS:
        if key == b"samplespersecond":
            draft.evidence["deepspeed"] += 1  # Megatron-LM itself never printed it
        if key != b"lossscale" or value > 0:
            setattr(record, _FLOATS[key], value)
    elif key in _COUNTS:
        setattr(record, _COUNTS[key], int(value))
    elif key == b"consumedsamples":
        draft.scratch[CONSUMED] = int(value)
    else:
        draft.note("seq_len", int(value), "records")


def add_plain(draft: Draft, plain: Plain, first: int, last: int) -> None:
    """Add rows ``first`` to ``last`` of a block's plain lines."""
    series = draft.of(SOURCE)
    while first < last and not (series.is_undisturbed and _is_even(plain.iteration[first:last], series)):
        row = Record(iteration=int(plain.iteration[first]), wall_ns=int(plain.wall_ns[first]))
        row.samples = _batch(draft, int(plain.consumed[first]), series.last, row.iteration)
        series.add(row)
        first += 1
    if first < last:
        known, consumed = draft.scratch.get(CONSUMED), int(plain.consumed[last - 1])
        samples = None
        if isinstance(known, int) and consumed > known:
            samples = (consumed - known) // series.interval()
        draft.scratch[CONSUMED] = consumed
        series.add_folded(plain.iteration[first:last], plain.wall_ns[first:last], samples)


def _is_even(iterations: Int64, series: Series) -> bool:
    interval = series.interval()
    if series.last is None or iterations[0] - series.last != interval:
        return False
    return bool((np.diff(iterations) == interval).all())


def _batch(draft: Draft, consumed: int, last: int | None, iteration: int | None) -> int | None:
    """Mean samples an iteration since the record before."""
    known = draft.scratch.get(CONSUMED)
    draft.scratch[CONSUMED] = consumed
    if not isinstance(known, int) or last is None or iteration is None or iteration <= last or consumed <= known:
        return None
    return (consumed - known) // (iteration - last)
