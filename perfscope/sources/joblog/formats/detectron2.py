"""Detectron2: a line every 20 iterations, counted from 0.

    [11/01 11:27:04 d2.utils.events]:  eta: 8:05:12  iter: 1259  total_loss: 1.012  time: 0.3322  data_time: ...

``time`` is the mean since the start without its first three iterations; the clock stands still during evaluations and
saves. Where the start is known, the time since the line before follows from two means; else it is used as printed.
What the lines up to the first one of a start took does not follow: its iterations are counted, and have no time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.constants import MIB, NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.step_times import ElapsedClock
from perfscope.sources.joblog.text import parse_number, parse_resolution

BETWEEN = "between two of Detectron2's mean times"
MEAN = "Detectron2's mean time since the start"

_UNTIMED = 3
_LATEST_FIRST = 100
_CELL = re.compile(rb"(?<![\w_])(total_loss|time|max_mem): ([\d.eE+naif-]{1,20})")


@dataclass(slots=True)
class _State(FormatState):
    """The iteration of the start, a clock of the iterations since, all starts, and what they repeated."""

    start: int | None = None
    clock: ElapsedClock = field(default_factory=lambda: ElapsedClock(BETWEEN, runs_on=False))
    last: int = -1
    starts: list[int] = field(default_factory=list)
    reached: int = 0
    redone: int = 0


def _on_start(state: _State, line: LineMatch) -> None:
    state.start = int(line[1])
    state.starts.append(state.start)
    state.redone += max(state.reached - state.start, 0)
    state.clock.close(state.log)
    state.log.on_restart()


def _on_iteration(state: _State, line: LineMatch) -> None:
    step, cells = int(line["step"]), dict(_CELL.findall(line["cells"]))
    text = cells.get(b"time", b"")
    seconds, log = parse_number(text), state.log
    memory = parse_number(cells.get(b"max_mem", b""))
    log.add_memory(allocated=None if memory is None else memory * MIB)
    if state.start is None and state.last < 0 and step < _LATEST_FIRST:
        state.start = 0
        state.starts.append(0)
    state.last, state.reached = max(state.last, step), step + 1
    record = Record(step + 1, loss=parse_number(cells.get(b"total_loss", b"")))
    if seconds is None or seconds <= 0:
        log.series_of(MEAN).add(record, line.label)
        return
    resolution_s = parse_resolution(text)
    mean = Record(step + 1, round(seconds * NS_PER_S), loss=record.loss)
    mean.wall_resolution_ns = round(resolution_s * NS_PER_S)
    log.series_of(MEAN).add(mean, line.label)
    timed = step + 1 - (state.start or 0) - _UNTIMED
    if state.start is not None and timed > 0:
        elapsed_ns, resolution_ns = round(seconds * timed * NS_PER_S), round(resolution_s * timed * NS_PER_S)
        state.clock.add(log, record, elapsed_ns, max(resolution_ns, 1), label=line.label)


def _close(state: _State) -> None:
    state.clock.close(state.log)
    for name in (BETWEEN, MEAN):
        series = state.log.series.get(name)
        if series is not None and (series.resolved.attempt[-1:] == len(state.starts) - 1).all():
            series.starts, series.redone_by_starts = state.starts, state.redone


_RULE = Rule(
    b"total_loss: ",
    re.compile(rb"utils\.events\b[^\n]{0,40}? iter: (?P<step>\d{1,9}) (?P<cells>[^\n]{0,1500})"),
    _on_iteration,
    begin=(b"utils.events",),
)


FORMAT = Format(
    framework="detectron2",
    state=_State,
    rules=(
        _RULE,
        Rule(
            b"Starting training from iteration ", re.compile(rb"Starting training from iteration (\d{1,9})"), _on_start
        ),
    ),
    sources=(StepTimeSource(BETWEEN), StepTimeSource(MEAN)),
    close=_close,
)
