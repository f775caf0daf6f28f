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
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfscope.constants import GIGA, KILO, MEGA, NS_PER_MS, NS_PER_S, PETA, TERA
from perfscope.sources.joblog.formats.megatron.state import MegatronState
from perfscope.sources.joblog.rules import MOST_OF_LINE, LineMatch, Rule
from perfscope.sources.joblog.series.iteration_series import IterationSeries
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.splitting.split_block import Numbers, PlainLines
from perfscope.sources.joblog.text.line_fields import LARGEST, parse_label, parse_number, parse_resolution
from perfscope.tables.columns import Int64

SOURCE = "elapsed time per iteration"

_START = re.compile(rb"iteration(?:=\s*|\s+)(\d{1,18})\s*/\s*(\d{1,18})\s*\|")
_TIME = re.compile(rb"e\s*lapsed[\s_]*time")
_SPACE = re.compile(rb"[\s_]+")
_SPEED_IN_FRONT = re.compile(rb"samples/sec:\s*([\d.]+)\s*\|\s*$")
_DATE_IN_FRONT = re.compile(rb"\[\d{4}-\d\d-\d\d[ T][\d:.]+\]\s*$")
_NEXT_LINE = re.compile(rb"\s*(?:time \(ms\)|\[\d{4}-|\(min, max\)|\[Rank|INFO:)")
_FLOPS = re.compile(rb"\s*([\d.]+)([KMGTPE]?)FLOPS")
_PREFIXES = {b"": 1, b"K": KILO, b"M": MEGA, b"G": GIGA, b"T": TERA, b"P": PETA, b"E": KILO * PETA}
_LONGEST = 2000
_MOST_LINES = 12
_FEW = 8

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

_CELLS_BESIDE = {b"approxflopspergpu", b"consumedsamples", b"actualseqlen"}


@dataclass(frozen=True, slots=True)
class _RecordRule(Rule[MegatronState]):
    """Finds records by their beginning, not by lines: two may share a line, and one may be broken over several."""

    def find(self, text: bytes) -> Iterator[LineMatch]:
        """Yield every record of a block, of a line of more than eight the first; ``end`` is the end of the record."""
        starts = list(_START.finditer(text))
        line = skipped = 0
        for index, match in enumerate(starts):
            limit = starts[index + 1].start() if index + 1 < len(starts) else len(text)
            if match.start() < skipped:
                continue
            line = text.rfind(b"\n", line, match.start()) + 1 or line
            further = starts[index + MOST_OF_LINE].start() if index + MOST_OF_LINE < len(starts) else len(text)
            if further < len(text) and text.find(b"\n", match.start(), further) < 0:
                skipped = text.find(b"\n", further) % (len(text) + 1)  # its end, or that of the text
            record = _record_text(text, match.start(), min(limit, match.start() + _LONGEST))
            if _TIME.search(record):
                yield LineMatch(text, line, match.start() + len(record), match)


def _record_text(text: bytes, start: int, limit: int) -> bytes:
    """A record from its start to its last bar: one line, or more where it is broken."""
    end = text.find(b"\n", start, limit)
    if end < 0:
        return text[start:limit]
    line = text[start:end]
    if line.rstrip().endswith(b"|") and b"elapsed" in line:
        return line
    for following in text[end + 1 : limit].split(b"\n", _MOST_LINES)[:_MOST_LINES]:
        if _NEXT_LINE.match(following) or (not following.strip() and b"elapsed" in line):
            break
        line += b"\n" + following
        if following.rstrip().endswith(b"|") and _TIME.search(line):
            break
    return line


def _on_record(state: MegatronState, line: LineMatch) -> None:
    start = line.match.start()
    record = Record(iteration=int(line[1]))
    front = line.text[line.line : start]
    speed = _SPEED_IN_FRONT.search(front) if b"|" in front else None
    if speed:
        record.samples_per_s = parse_number(speed[1])
        state.is_gpt_neox = True
    for key, label, value in _cells(line.text[start : line.end]):
        _fill(state, record, key, label, value)
    log = state.log
    state.batch = record.samples if record.samples is not None else state.batch
    if record.wall_ns is None:
        log.unreadable += 1
        return
    series = log.series_of(SOURCE)
    is_dated = b"[" in front and _DATE_IN_FRONT.search(front) is not None
    series.clock_runs_on, series.starts_over = not is_dated, is_dated
    is_new = series.add(record, parse_label(line.text, line.line) if front.strip() else None)
    if not is_new and record.iteration == series.last and series.folded_times.records:
        series.folded_times.set_last(record)  # what it repeats was read with many others, for its time alone
    if is_new and state.train_iterations != int(line[2]):
        state.train_iterations = int(line[2])
        log.on_end_of_records(state.train_iterations, record.iteration or 0)


RULE = _RecordRule(b"iteration", _START, _on_record)


def _cells(record: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Key, label and value of every complete cell that is needed; the key is without blanks, which line breaks add."""
    for cell in record.split(b"|")[1:-1]:
        label, colon, value = cell.rpartition(b":")
        if not colon:
            label, _, value = cell.partition(b"=")
        key = _key(label)
        if key:
            yield key, label, value


@lru_cache(maxsize=1024)
def _key(label: bytes) -> bytes:
    """A cell's label without blanks; empty where the cell is not needed."""
    key = _SPACE.sub(b"", label).lower()
    return key if key in _TIMES or key in _FLOATS or key in _COUNTS or key in _CELLS_BESIDE else b""


def _value(text: bytes) -> float | None:
    """A cell's number, even where the line was broken inside it."""
    try:
        value = float(text)
    except ValueError:
        return parse_number(_SPACE.sub(b"", text))
    return value if abs(value) < LARGEST else None


def _fill(state: MegatronState, record: Record, key: bytes, label: bytes, text: bytes) -> None:
    log = state.log
    if key == b"approxflopspergpu":
        state.is_gpt_neox = True
        flops = _FLOPS.match(text.upper())
        value = parse_number(flops[1]) if flops else None
        if flops and value is not None:
            scale = _PREFIXES[flops[2]] / TERA
            _set_tflops(state, record, label, value * _PREFIXES[flops[2]] / TERA, parse_resolution(flops[1]) * scale)
        return
    value = _value(text)
    if value is None:
        return
    if key in _TIMES:
        unit_ns = _TIMES[key]
        record.wall_ns = round(value * unit_ns) if value > 0 else None
        record.wall_resolution_ns = round(parse_resolution(text) * unit_ns)
    elif key in _FLOATS:
        name = _FLOATS[key]
        if name == "tflops_per_gpu":
            _set_tflops(state, record, label, value, parse_resolution(text))
            return
        if key == b"samplespersecond":
            log.frameworks.add("deepspeed")  # Megatron-LM itself never printed it
        if key != b"lossscale" or value > 0:
            setattr(record, name, value)
    elif key in _COUNTS:
        setattr(record, _COUNTS[key], int(value))
    elif key == b"consumedsamples":
        state.consumed_samples, state.consumed_at = int(value), record.iteration
    else:
        log.set_fact("seq_len", int(value), "records")


def _set_tflops(state: MegatronState, record: Record, label: bytes, tflops: float, resolution: float) -> None:
    record.tflops_per_gpu, record.tflops_resolution = tflops, resolution
    state.log.tflops_label = label.strip().decode(errors="replace")


def add_plain_lines(state: MegatronState, plain: PlainLines, first: int, last: int) -> None:
    """Add rows ``first`` to ``last`` of a block's plain lines."""
    series = state.log.series_of(SOURCE)
    if last - first < _FEW:
        for row in range(first, last):
            _add_plain_line(state, series, plain, row)
        return
    skipped = plain.columns["skipped"][first:last] if "skipped" in plain.columns else None
    is_even = series.is_steady and _is_even(plain.iteration[first:last], series)
    if not is_even or state.consumed_at != series.last:
        numbers = np.asarray(plain.iteration[first:last], np.int64)
        batches = _batches(state, numbers, np.asarray(plain.consumed[first:last], np.int64))
        is_new = series.add_rows(numbers, plain.wall_ns[first:last], batches, plain.label)
        skipped = skipped[is_new] if skipped is not None else None
    else:
        before, consumed = state.consumed_samples, int(plain.consumed[last - 1])
        samples = None
        if before is not None and consumed > before:
            samples = (consumed - before) // series.interval()
        state.consumed_samples, state.consumed_at = consumed, int(plain.iteration[last - 1])
        series.add_many(plain.iteration[first:last], plain.wall_ns[first:last], samples, plain.label)
    if skipped is not None:
        series.folded_times.skipped += int(skipped.sum())


def _add_plain_line(state: MegatronState, series: IterationSeries, plain: PlainLines, row: int) -> None:
    number, consumed = int(plain.iteration[row]), int(plain.consumed[row])
    skipped = int(plain.columns["skipped"][row]) if "skipped" in plain.columns else 0
    batch = _batch(state, consumed, number)
    series.add(Record(number, int(plain.wall_ns[row]), samples=batch, skipped=skipped), plain.label)


def _is_even(iterations: Numbers, series: IterationSeries) -> bool:
    interval = series.interval()
    if series.last is None or iterations[0] - series.last != interval:
        return False
    if isinstance(iterations, range):
        return len(iterations) == 1 or iterations.step == interval
    return bool((np.diff(iterations) == interval).all())


def _batches(state: MegatronState, numbers: Int64, consumed: Int64) -> Int64:
    """Mean samples an iteration since the record before, of many records; after a restart that of the record behind."""
    before, state.consumed_samples = state.consumed_samples, int(consumed[-1])
    last, state.consumed_at = state.consumed_at, int(numbers[-1])
    iterations = np.diff(numbers, prepend=numbers[0] if last is None else last)
    samples = np.diff(consumed, prepend=consumed[0] if before is None else before)
    batches = np.where((iterations > 0) & (samples > 0), samples // np.maximum(iterations, 1), 0)
    unknown = np.flatnonzero(batches <= 0)
    behind = np.append(batches[1:], 0)[unknown]
    batches[unknown] = np.where(behind > 0, behind, state.batch or 0)
    state.batch = int(batches[-1]) or state.batch
    return batches


def _batch(state: MegatronState, consumed: int, iteration: int) -> int | None:
    """Mean samples an iteration since the record before; after a restart those of the last one that is known."""
    before, last = state.consumed_samples, state.consumed_at
    state.consumed_samples, state.consumed_at = consumed, iteration
    if before is not None and last is not None and iteration > last and consumed > before:
        state.batch = (consumed - before) // (iteration - last)
    return state.batch


def conclude(state: MegatronState) -> None:
    """Set the run's last iteration, and how many iterations a record is the mean of according to the arguments."""
    log = state.log
    if state.train_iterations is not None:
        log.set_fact("train_iterations", state.train_iterations, "records")
    if SOURCE in log.series:
        log.series[SOURCE].stated_interval = log.count("log_interval")
