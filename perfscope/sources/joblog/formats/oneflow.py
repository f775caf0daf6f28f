"""OneFlow's benchmarks: BERT, image classification, wide and deep.

BERT and CNN lines end in the time since 1970; their own throughput is a mean over an interval that starts at the first
line. Steps are timed by those stamps, as the benchmark's own script does; the lines of 2020 have none. Wide and deep
prints a latency, whose first value is warm-up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.step_times import EpochCounter, add_dated
from perfscope.sources.joblog.text import parse_number
from perfscope.tables.joblog import Disturbance

STAMPS = "time stamps of OneFlow's lines"
LATENCY = "OneFlow's latency"

_SETTINGS = {b"batch_size_per_device": "mbs", b"gpu_num_per_node": "gpus_per_node", b"num_nodes": "nodes"}
_DIGITS_OF_NS = 9


@dataclass(slots=True)
class _State(FormatState):
    """The epochs of the lines that count by them."""

    epochs: EpochCounter = field(default_factory=EpochCounter)


def _on_stamped_step(state: _State, line: LineMatch) -> None:
    stamp_ns = _to_ns(line["stamp"]) if line["stamp"] else None
    step = int(line["step"])
    if "epoch" in line.match.re.groupindex:
        step = state.epochs.add(int(line["epoch"]), step)
    record = Record(iteration=step, loss=parse_number(line["loss"]), samples_per_s=parse_number(line["speed"]))
    add_dated(state.log, STAMPS, line, record, stamp_ns)


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
)
