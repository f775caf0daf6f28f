"""OneFlow's benchmarks: BERT, image classification, wide and deep.

BERT and CNN lines end in the time since 1970; their own throughput is a mean over an interval that starts at the first
line. Steps are timed by those stamps, as the benchmark's own script does; the lines of 2020 have none. Wide and deep
prints a latency, whose first value is warm-up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import numpy as np

from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.sources.joblog.bulk.cells import Cells
from perfscope.sources.joblog.bulk.line_shapes import Column, Measured
from perfscope.sources.joblog.bulk.record_lines import (
    STEP,
    CopiesOf,
    LinesOfRecords,
    add_evenly,
    number_over_epochs,
    read_lines,
)
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.series.epochs import EpochCounter
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.splitting.split_block import PlainLines
from perfscope.sources.joblog.step_times.step_clock import StepClock
from perfscope.sources.joblog.text.line_fields import parse_number
from perfscope.tables.joblog import Disturbance

STAMPS = "time stamps of OneFlow's lines"
LATENCY = "OneFlow's latency"

_SETTINGS = {b"batch_size_per_device": "mbs", b"gpu_num_per_node": "gpus_per_node", b"num_nodes": "nodes"}
_DIGITS_OF_NS = 9


@dataclass(slots=True)
class _State(FormatState):
    """The stamps of the lines, and the epochs of the lines that count by them."""

    clock: StepClock = field(default_factory=lambda: StepClock(STAMPS))
    epochs: EpochCounter = field(default_factory=EpochCounter)


def _on_stamped_step(state: _State, line: LineMatch) -> None:
    stamp_ns = _to_ns(line["stamp"]) if line["stamp"] else None
    step = int(line["step"])
    if "epoch" in line.match.re.groupindex:
        step = state.epochs.add(int(line["epoch"]), step)
    record = Record(iteration=step, loss=parse_number(line["loss"]), samples_per_s=parse_number(line["speed"]))
    state.clock.add(state.log, line, record, stamp_ns)


def _to_ns(stamp: bytes) -> int:
    seconds, _, fraction = stamp.partition(b".")
    return int(seconds) * NS_PER_S + int(fraction[:_DIGITS_OF_NS].ljust(_DIGITS_OF_NS, b"0"))


def _on_latency(state: FormatState, line: LineMatch) -> None:
    latency = parse_number(line["latency"])
    if latency is None or latency <= 0:
        state.log.unreadable += 1
        return
    record = Record(int(line["step"]), round(latency * NS_PER_MS), loss=parse_number(line["loss"]))
    state.log.series_of(LATENCY).add(record, line.label)


def _on_validation(state: FormatState, _line: LineMatch) -> None:
    state.log.on_disturbance(Disturbance.EVALUATION)


def _on_setting(state: FormatState, line: LineMatch) -> None:
    state.log.set_count(_SETTINGS[line[1]], line[2], "log")


_STAMPED = Rule(
    b", total_loss: ",
    re.compile(
        rb"step: (?P<step>\d{1,15}), total_loss: (?P<loss>[^,\s]+),[^\n]{0,300}? "
        rb"throughput: (?P<speed>\S+) (?P<stamp>\d{9,}(?:\.\d+)?)"
    ),
    _on_stamped_step,
    begin=(b"step: ",),
)


_OF_EPOCHS: Rule[_State] = Rule(
    b"samples/s: ",
    re.compile(
        rb"epoch (?P<epoch>\d{1,15}), iter (?P<step>\d{1,15}), loss: (?P<loss>[^,\s]+),[^\n]{0,300}?"
        rb"samples/s: (?P<speed>\S+)(?: (?P<stamp>\d{9,}(?:\.\d+)?))?"
    ),
    _on_stamped_step,
    begin=(b"epoch ",),
)

_STAMP = Column(r"\d{9,10}(?:\.\d+)?")


def _measure(cells: Cells) -> Measured:
    """The stamps are readings of the clock."""
    steps = cells.integers("step")
    columns = {"epoch": cells.integers("epoch")} if "epoch" in cells else {}
    if "stamp" not in cells:
        return Measured(steps, np.full_like(steps, -1), columns)
    stamps_ns = [_to_ns(text.encode()) for text in cells.texts("stamp")]
    return Measured(steps, np.asarray(stamps_ns, np.int64), columns)


def _has_own_stamp(line: LineMatch) -> bool:
    """A line without one may have a date in front."""
    return bool(line["stamp"]) or line.timestamp_ns is None


def _add(state: _State, plain: PlainLines, first: int, last: int) -> None:
    rows = plain.rows(first, last)
    if "epoch" in rows.columns:
        rows = number_over_epochs(state.epochs, rows)
    if first < last and rows.wall_ns[0] > 0:
        state.clock.add_many(state.log, rows)
    else:
        add_evenly(state.log.series_of(STAMPS), rows, 0, last - first)


_RULES: tuple[Rule[_State], ...] = (
    _STAMPED,
    _OF_EPOCHS,
    Rule(
        b"latency(ms): ",
        re.compile(
            rb"iter: (?P<step>\d{1,15})/\d+, loss: (?P<loss>[^,\s]+),[^\n]{0,300}?latency\(ms\): (?P<latency>[^\s|]+)"
        ),
        _on_latency,
        begin=(b"iter: ",),
    ),
    Rule(b"validation: epoch ", re.compile(rb"validation: epoch \d+, iter "), _on_validation, identifies=False),
    *(
        Rule(
            anchor,
            re.compile(rb"(?:^|:)\s{0,99}(" + anchor + rb") = (\d{1,15})", re.M),
            _on_setting,
            identifies=False,
            span=(100, 60),
        )
        for anchor in _SETTINGS
    ),
)

FORMAT = Format(
    framework="oneflow",
    state=_State,
    rules=_RULES,
    sources=(StepTimeSource(LATENCY), StepTimeSource(STAMPS)),
    bulk=read_lines(
        STAMPS,
        LinesOfRecords(_STAMPED, {"step": STEP, "stamp": _STAMP}, _measure),
        LinesOfRecords(
            _OF_EPOCHS,
            {"epoch": STEP, "step": STEP, "stamp": replace(_STAMP, is_optional=True)},
            _measure,
            is_record=_has_own_stamp,
        ),
        add=_add,
        are_copies=CopiesOf[_State]((STAMPS,), (), lambda state: state.epochs),
    ),
)
