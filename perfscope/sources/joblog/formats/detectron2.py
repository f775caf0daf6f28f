"""Detectron2: a line every 20 iterations, counted from 0.

    [11/01 11:27:04 d2.utils.events]:  eta: 8:05:12  iter: 1259  total_loss: 1.012  time: 0.3322  data_time: ...

``time`` is the mean since the start without its first three iterations; the clock stands still during evaluations and
saves. Where the start is known, the time since the line before follows from two means; else it is used as printed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.constants import MIB, NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, LineMatch, Rule
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.step_times import ElapsedClock
from perfscope.sources.joblog.text import parse_number, parse_resolution

BETWEEN = "between two of Detectron2's mean times"
MEAN = "Detectron2's mean time since the start"

_UNTIMED = 3
_LATEST_FIRST = 100
_CELL = re.compile(rb"(?<![\w_])(total_loss|time|max_mem): ([\d.eE+naif-]{1,20})")


@dataclass(slots=True)
class _State(FormatState):
    """A clock of the iterations since the last start, where that is known, and the last iteration."""

    clock: ElapsedClock = field(default_factory=lambda: ElapsedClock(BETWEEN, runs_on=False))
    start: int | None = None
    last: int = -1


def _on_start(state: _State, line: LineMatch) -> None:
    state.start = int(line[1])
    state.clock.close(state.log)
    state.log.on_restart()


def _on_iteration(state: _State, line: LineMatch) -> None:
    step, cells, log = int(line["step"]), dict(_CELL.findall(line["cells"])), state.log
    text = cells.get(b"time", b"")
    seconds, loss = parse_number(text), parse_number(cells.get(b"total_loss", b""))
    log.add_memory(MIB, allocated=parse_number(cells.get(b"max_mem", b"")))
    if state.start is None and state.last < 0 and step < _LATEST_FIRST:
        state.start = 0
    state.last = max(state.last, step)
    if seconds is None or seconds <= 0:
        log.add(MEAN, Record(step + 1, loss=loss), line)
        return
    mean = Record(step + 1, round(seconds * NS_PER_S), loss=loss)
    mean.wall_resolution_ns = round(parse_resolution(text) * NS_PER_S)
    log.add(MEAN, mean, line)
    timed = step + 1 - (step if state.start is None else state.start) - _UNTIMED
    if timed > 0:
        elapsed_ns = round(seconds * timed * NS_PER_S)
        resolution_ns = max(round(parse_resolution(text) * timed * NS_PER_S), 1)
        state.clock.add(log, Record(step + 1, loss=loss), elapsed_ns, resolution_ns, label=line.label)


FORMAT = Format(
    framework="detectron2",
    state=_State,
    rules=(
        Rule(
            b"total_loss: ",
            rb"utils\.events\b[^\n]{0,40}? iter: (?P<step>\d{1,9}) (?P<cells>[^\n]{0,1500})",
            _on_iteration,
            begin=(b"utils.events",),
        ),
        Rule(b"Starting training from iteration ", rb"Starting training from iteration (\d{1,9})", _on_start),
    ),
    sources=(BETWEEN, MEAN),
    close=lambda state: state.clock.close(state.log),
)
