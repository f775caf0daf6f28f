"""Detectron2's ``metrics.json``: a JSON object every 20 iterations, its keys sorted, counted from 0.

    {"data_time": 0.027, "eta_seconds": 8898.9, "iteration": 19, ..., "time": 2.2359, "total_loss": 2.7251}

``time`` is the median of the last 20 iterations, the first two of a start left out: the loading of data is in it,
evaluations and saves are not. ``log.txt`` beside it has the mean since the start, from which the mean of each 20
follows: where some iterations take long, it is above the median. Figures of an evaluation are objects of their own
without a time, or stand in that of a training iteration. Each start appends; the iteration after a start is above the
one of its checkpoint. ``eta_seconds`` is 0 at the last iteration and nowhere else. Objects with a comma behind them
are of an array, which nobody of these wrote, and are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.text import parse_number

SOURCE = "metrics.json's median of the last 20 iterations"

_KEY = re.compile(rb'"([^"\\]{1,200})": (-?[\d.]{1,30}(?:[eE][+-]?\d{1,4})?|NaN|-?Infinity)(?=, "|$)')
_REQUIRED = {b"data_time", b"iteration", b"total_loss"}


@dataclass(slots=True)
class _State(FormatState):
    """The last iteration, and whether it was to be the last one, and whether this is an array."""

    last: int = -1
    is_end: bool = False
    is_array: bool = False


def _figures(line: LineMatch) -> dict[bytes, bytes] | None:
    """The figures of a training iteration; None where the object is of something else."""
    cells = _KEY.findall(line["cells"])
    figures = dict(cells)
    names = [name for name, _ in cells]
    is_one = figures.keys() >= _REQUIRED and names == sorted(names) and figures[b"iteration"].isdigit()
    return figures if is_one else None


def _on_object(state: _State, line: LineMatch) -> None:
    state.is_array |= bool(line["comma"])
    if state.is_array:
        return
    figures = _figures(line)
    if figures is None:
        return
    iteration, log = int(figures[b"iteration"]), state.log
    if iteration <= state.last:
        log.on_restart()
    state.last, state.is_end = iteration, parse_number(figures.get(b"eta_seconds", b"")) == 0
    seconds = parse_number(figures.get(b"time", b""))
    record = Record(iteration + 1, loss=parse_number(figures[b"total_loss"]))
    if seconds is not None and seconds > 0:
        record.wall_ns = round(seconds * NS_PER_S)
    elif b"time" in figures:
        log.unreadable += 1
    log.series_of(SOURCE).add(record, line.label)


def _close(state: _State) -> None:
    if state.is_end:
        state.log.set_fact("train_iterations", state.last + 1, "records")


_RULE = Rule(
    b'"total_loss": ',
    re.compile(rb"\{(?P<cells>[^\n{}]{1,16000}+)\}(?P<comma>,?)[ \t]*\Z"),
    _on_object,
    begin=(b'{"',),
    identifies=False,
)

FORMAT = Format(
    framework="detectron2",
    state=_State,
    rules=(_RULE,),
    sources=(StepTimeSource(SOURCE),),
    close=_close,
)
