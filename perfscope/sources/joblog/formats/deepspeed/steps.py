"""The lines that DeepSpeed prints for a step: throughput, pipeline, and the step line with its date.

``SamplesPerSec`` of 0.3, and ``RunningAvgSamplesPerSec`` today, is the mean since the third step, not the current
speed; the speed since the previous line is computed from two such means. Figures that vary too much for a running mean
are used as printed. It counts samples of the whole job. With gradient accumulation some versions count micro-steps, so
the figure is compared with every other source in the log.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.bulk.cells import Cells
from perfscope.sources.joblog.bulk.line_forms import INTEGER
from perfscope.sources.joblog.bulk.line_shapes import Column, Measured
from perfscope.sources.joblog.bulk.record_lines import LinesOfRecords, add_evenly, read_lines
from perfscope.sources.joblog.content.builder import JobLogBuilder
from perfscope.sources.joblog.formats.deepspeed.state import STEPS, DeepSpeedState
from perfscope.sources.joblog.log_format import FormatState, ignore_line
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.series.iteration_series import IterationSeries
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.splitting.split_block import PlainLines
from perfscope.sources.joblog.step_times import timer_lines
from perfscope.sources.joblog.text.line_fields import parse_number

THROUGHPUT = "batch / SamplesPerSec"
PIPELINE = "DeepSpeed's pipeline: iter time"

_AS_PRINTED = "SamplesPerSec as it is printed"
_UNTIMED_STEPS = 2
_HALF_A_MS = 0.0005
_SURE = 0.4
_FEWEST_LINES = 12
_SETTLED = 0.6
_ALIKE = 0.25


def _on_throughput(state: DeepSpeedState, line: LineMatch) -> None:
    step, mean = int(line["new"] or line["old"]), parse_number(line["mean"])
    current = parse_number(line["now"])
    if mean is None or mean <= 0:
        state.log.unreadable += 1
        return
    if current is None:
        state.log.series_of(_AS_PRINTED).add(Record(iteration=step, samples_per_s=mean), line.label)
        current = _since_last(state, step, mean) if line["epoch"] in (b"", b"0") else mean
    state.log.series_of(THROUGHPUT).add(Record(iteration=step, samples_per_s=current), line.label)


def _since_last(state: DeepSpeedState, step: int, mean: float) -> float:
    """Samples a second since the line before: means m1 at step n1 and m2 at n2 count the steps n - 2."""
    last, state.last_mean = state.last_mean, (step, mean)
    if last is None or last[0] >= step or step <= _UNTIMED_STEPS:
        return mean
    before, mean_before = last
    spent = (step - _UNTIMED_STEPS) / mean - max(before - _UNTIMED_STEPS, 0) / mean_before
    return (step - before) / spent if spent > 0 else mean


def _on_pipeline_step(state: FormatState, line: LineMatch) -> None:
    seconds, speed = parse_number(line["seconds"]), parse_number(line["speed"])
    if seconds is None or seconds <= 0:
        state.log.unreadable += 1
        return
    record = Record(int(line["step"]), round(seconds * NS_PER_S), samples_per_s=speed, loss=parse_number(line["loss"]))
    if speed is not None and speed > 0:
        _sharpen(state, record, seconds, speed)
    state.log.series_of(PIPELINE).add(record, line.label)


def _sharpen(state: FormatState, record: Record, seconds: float, speed: float) -> None:
    """Batch = time x speed, where the time's three decimals leave a single integer; the speed has more digits."""
    batch = round(seconds * speed)
    if batch > 0 and _HALF_A_MS * speed < _SURE and abs(batch / speed - seconds) <= _HALF_A_MS * 1.01:
        record.samples, record.wall_ns = batch, round(batch / speed * NS_PER_S)
        state.log.set_fact("gbs", batch, "records")


def _on_step(state: DeepSpeedState, line: LineMatch) -> None:
    if state.step_clock.add(state.log, line, Record(iteration=int(line[1]))):
        state.log.set_fact("skipped_total", int(line[2]), "log")


def _on_start(state: FormatState, line: LineMatch) -> None:
    state.log.set_fact("deepspeed_version", line[1].decode(errors="replace"), "log")
    state.log.on_restart()


def conclude(state: DeepSpeedState) -> None:
    """Make times of the throughput, and do not trust them where micro-steps may have been counted."""
    log = state.log
    if THROUGHPUT not in log.series:
        return
    printed = log.series.pop(_AS_PRINTED, None)
    if printed is not None and not _are_running_means(printed):
        log.series[THROUGHPUT] = printed
    batch = _find_global_batch(log)
    if batch is not None:
        log.series[THROUGHPUT].set_times_by_throughput(batch)
    if log.count("gas") != 1 and not _is_confirmed(log.median_times()):
        log.distrust(THROUGHPUT)


def _find_global_batch(log: JobLogBuilder) -> int | None:
    """Samples of a step: as stated, else from micro-batches; accumulation counts as 1 where it is not stated."""
    stated, micro = log.count("gbs"), log.count("mbs")
    if stated is not None or micro is None:
        return stated
    gpus, tensor, pipeline = log.count("gpus"), log.count("tp") or 1, log.count("pp") or 1
    replicas = log.count("dp") or (gpus // (tensor * pipeline) if gpus else None)
    return micro * replicas * (log.count("gas") or 1) if replicas else None


def _are_running_means(printed: IterationSeries) -> bool:
    """Whether the figures are running means, which change less and less: each step has a smaller share in them."""
    if len(printed) < _FEWEST_LINES:
        return True
    speeds = printed.iterations().samples_per_s.compressed()
    moves = np.abs(np.diff(speeds))
    third = len(moves) // 3
    early, late = float(moves[:third].mean()), float(moves[-third:].mean())
    return late <= _SETTLED * early


def _is_confirmed(median_times: dict[str, int]) -> bool:
    """Whether nothing else is timed, or something gives about the same time: the error would be the accumulation."""
    doubtful = median_times.pop(THROUGHPUT, 0)
    trusted = median_times.values()
    return not trusted or any(abs(time - doubtful) <= _ALIKE * doubtful for time in trusted)


_THROUGHPUT_RULE = Rule(
    b"SamplesPerSec=",
    re.compile(
        rb"(?:global_step=(?P<new>\d{1,15})|\b(?P<epoch>\d{1,9})/(?P<old>\d{1,15})), "
        rb"(?:RunningAvg)?SamplesPerSec=(?P<mean>[^,\s]{1,60}+)"
        rb"(?:, {0,9}CurrSamplesPerSec=(?P<now>[^,\s]{1,60}+))?"
    ),
    _on_throughput,
    span=(50, 160),
)
_STEP_RULE = Rule(b", skipped=", re.compile(rb"\bstep=(\d{1,15}), skipped=(\d{1,15}), "), _on_step)
_STEP_LINE = {"step": Column(INTEGER, re.compile(rb"\bstep=(\d{1,15}), skipped="))}
_SPEED_LINE = {
    "counted": Column(INTEGER, re.compile(rb"(?:global_step=|\b\d{1,9}/)(\d{1,15}), (?:RunningAvg)?SamplesPerSec=")),
    "now": Column(cell=re.compile(rb"CurrSamplesPerSec=([\d.eE+-]{1,30})")),
    "memory": Column(cell=re.compile(rb"MaxMemAllocated=([\d.]{1,30})\s*GB"), is_optional=True),
}
_MEAN_LINE = {
    "counted": _SPEED_LINE["counted"],
    "mean": Column(cell=re.compile(rb"SamplesPerSec=([\d.eE+-]{1,30})(?:,? *\n|$)")),
}


def _measure_steps(cells: Cells) -> Measured:
    """The dates are readings of the clock."""
    columns = {"counted": cells.integers("counted")} if "counted" in cells else {}
    return Measured(cells.integers("step"), cells.stamps_ns(), columns)


def _measure_speeds(cells: Cells) -> Measured:
    """The lines state no time."""
    steps = cells.integers("counted")
    return Measured(steps, np.full_like(steps, -1), {"counted": steps})


def _measure_means(cells: Cells) -> Measured:
    """Of the running mean only counts that it is one."""
    steps, means = cells.integers("counted"), cells.numbers("mean")
    return Measured(steps, np.where(means > 0, -1, 0), {"counted": steps, "printed": steps})


def add_plain_lines(state: DeepSpeedState, plain: PlainLines, first: int, last: int) -> None:
    """Add rows ``first`` to ``last`` of a block's plain lines: of steps, of throughput, or of both in turn."""
    rows = plain.rows(first, last)
    if not len(rows.wall_ns):
        return
    if "step" in rows.columns:
        timer_lines.add_totals(state, rows)
        return
    if "counted" in rows.columns:
        untimed = replace(rows, iteration=rows.columns["counted"], wall_ns=np.full(last - first, -1))
        for source in (THROUGHPUT, _AS_PRINTED) if "printed" in rows.columns else (THROUGHPUT,):
            add_evenly(state.log.series_of(source), untimed, 0, last - first)
    if int(rows.wall_ns[0]) > 0:
        state.step_clock.add_many(state.log, rows)


def are_copies(state: DeepSpeedState, plain: PlainLines, first: int, last: int) -> bool:
    """Whether rows ``first`` to ``last`` repeat records of all sources that they are added to."""
    rows = plain.rows(first, last)
    if "step" in rows.columns or not len(rows.wall_ns):
        return False
    numbers = {STEPS: np.asarray(rows.iteration, np.int64)} if int(rows.wall_ns[0]) > 0 else {}
    for source in (THROUGHPUT, _AS_PRINTED) if "printed" in rows.columns else (THROUGHPUT,):
        if "counted" in rows.columns:
            numbers[source] = rows.columns["counted"]
    series = {source: state.log.series_of(source) for source in numbers}
    return all(series[source].is_full or series[source].are_copies(numbers[source], rows.label) for source in numbers)


_TOTALS: LinesOfRecords[DeepSpeedState] = LinesOfRecords(
    timer_lines.TOTALS_RULE,
    timer_lines.TOTALS,
    timer_lines.measure_totals,
    is_record=timer_lines.has_totals,
    is_numbered=False,
)
BULK = read_lines(
    (STEPS, THROUGHPUT, PIPELINE, _AS_PRINTED, timer_lines.SOURCE),
    LinesOfRecords(
        _STEP_RULE, {**_STEP_LINE, **_SPEED_LINE}, _measure_steps, peaks=("memory",), has_stamp=True, lines=2
    ),
    LinesOfRecords(_STEP_RULE, _STEP_LINE, _measure_steps, has_stamp=True),
    LinesOfRecords(_THROUGHPUT_RULE, _SPEED_LINE, _measure_speeds, peaks=("memory",)),
    LinesOfRecords(_THROUGHPUT_RULE, _MEAN_LINE, _measure_means),
    _TOTALS,
    add=add_plain_lines,
    are_copies=are_copies,
)

RULES = (
    _THROUGHPUT_RULE,
    Rule(
        b"iter time (s):",
        re.compile(
            rb"steps: (?P<step>\d{1,15}) loss: (?P<loss>\S{1,40}+)[^\n]{0,300}? iter time \(s\): (?P<seconds>[^,\s]+)"
            rb"(?:,? samples/sec: (?P<speed>[^,\s]+))?"
        ),
        _on_pipeline_step,
        begin=(b"steps: ",),
    ),
    _STEP_RULE,
    Rule(b"DeepSpeed info: version=", re.compile(rb"DeepSpeed info: version=([^,\s]+)"), _on_start),
    Rule(b"[launch.py:", re.compile(rb"\[launch\.py:"), ignore_line),
    Rule(b"DeepSpeedEngine", re.compile(rb"DeepSpeedEngine"), ignore_line),
    Rule(b"Initializing torch distributed with backend", re.compile(rb"init_distributed\]"), ignore_line),
)
