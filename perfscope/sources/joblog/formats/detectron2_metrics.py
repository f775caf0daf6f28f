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
from perfscope.sources.joblog.log_format import Format, FormatState, LineMatch, Rule
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import JSON_CELL, parse_number

SOURCE = "metrics.json's median of the last 20 iterations"


@dataclass(slots=True)
class _State(FormatState):
    """The last iteration, and whether it was to be the last one, and whether this is an array."""

    last: int = -1
    is_end: bool = False
    is_array: bool = False


def _on_object(state: _State, line: LineMatch) -> None:
    state.is_array |= bool(line["comma"])
    cells = JSON_CELL.findall(line["cells"])
    figures, names, log = dict(cells), [name for name, _ in cells], state.log
    is_training = figures.keys() >= {b"data_time", b"iteration", b"total_loss"} and names == sorted(names)
    if state.is_array or not is_training or not figures[b"iteration"].isdigit():
        return
    iteration = int(figures[b"iteration"])
    if iteration <= state.last:
        log.on_restart()
    state.last, state.is_end = iteration, parse_number(figures.get(b"eta_seconds", b"")) == 0
    record = Record(iteration + 1)
    if b"time" in figures:
        record = log.timed(figures[b"time"], NS_PER_S, iteration + 1, digits=False) or record
    record.loss = parse_number(figures[b"total_loss"])
    log.add(SOURCE, record, line)


def _close(state: _State) -> None:
    if state.is_end:
        state.log.set_fact("train_iterations", state.last + 1, "records")


FORMAT = Format(
    framework="detectron2",
    state=_State,
    rules=(
        Rule(
            b'"total_loss": ',
            re.compile(rb"\{(?P<cells>[^\n{}]{1,16000}+)\}(?P<comma>,?)[ \t]*\Z"),
            _on_object,
            begin=(b'{"',),
            identifies=False,
        ),
    ),
    sources=(SOURCE,),
    close=_close,
)
