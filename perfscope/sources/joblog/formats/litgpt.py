"""LitGPT and lit-gpt: a line a micro-batch, with its time.

    Epoch 1 | iter 4 step 1 | loss train: 1.585, val: n/a | iter time: 181.34 ms (step) remaining time: 0:10:00
    iter 77 step 39: loss 10.8259, iter time: 214.40ms (optimizer.step)

The time of a step is the sum over its micro-batches, where every one of them is printed. Pre-training starts the clock
behind the loading of a micro-batch, fine-tuning before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from perfscope.constants import NS_PER_MS
from perfscope.sources.joblog.bulk.cells import Cells
from perfscope.sources.joblog.bulk.line_shapes import Column, Measured
from perfscope.sources.joblog.bulk.record_lines import STEP, LinesOfRecords, add_evenly, read_lines
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource
from perfscope.sources.joblog.repeats.repetition import ANY_NUMBER, AddedOf, is_far
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.series.iteration_series import FEW
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.splitting.split_block import PlainLines
from perfscope.sources.joblog.text.line_fields import parse_number, parse_resolution

SOURCE = "LitGPT's iter time, summed over a step"

_ENDS = rb" \((?:optimizer\.step|opt\.step|step)\)"
_LOSS = re.compile(rb"loss(?: train)?(?: \(curr\))?:? ([\d.eE+naif-]{1,20})")


@dataclass(slots=True)
class _State(FormatState):
    """The micro-batches of the step that is printed: the last one, their time, their number, and the step."""

    COUNTS: ClassVar = ("wall_ns", "batches")

    last: int | None = None
    wall_ns: int | None = None
    batches: int = 0
    step: int | None = None

    def most_repetitions(self, added_of: AddedOf) -> int:
        """As often as is wanted where a step goes on for long."""
        added = added_of(self)["batches"]
        return ANY_NUMBER if not added or is_far(self.batches, added, 1) else 0


def _on_batch(state: _State, line: LineMatch) -> None:
    number, time_ms = int(line["iter"]), parse_number(line["ms"])
    if state.last == number:
        return  # another rank's copy
    is_readable = time_ms is not None and time_ms > 0
    state.log.unreadable += not is_readable
    _add_batch(state, number, int(line["step"]), round(time_ms * NS_PER_MS) if time_ms and is_readable else None)
    if not line["ends"]:
        return
    loss = _LOSS.search(line[0])
    record = Record(int(line["step"]), state.wall_ns, loss=parse_number(loss[1]) if loss else None)
    if record.wall_ns is not None:
        record.wall_resolution_ns = round(parse_resolution(line["ms"]) * NS_PER_MS)
        state.log.set_fact("gas", state.batches, "records")
    series = state.log.series_of(SOURCE)
    series.stated_interval = 1
    series.add(record, line.label)
    state.wall_ns, state.batches = 0, 0


def _add_batch(state: _State, number: int, step: int, wall_ns: int | None) -> None:
    """Add the time of a micro-batch to that of its step."""
    follows = state.last is not None and number == state.last + 1
    if state.last is not None and number < state.last:
        state.log.on_restart()
    is_whole = follows or number <= 1
    state.last, state.step = number, step
    if wall_ns is None or not is_whole:
        state.wall_ns = None
    elif state.wall_ns is not None or state.batches == 0:
        state.wall_ns = (state.wall_ns or 0) + wall_ns
    state.batches += 1


def _close(state: _State) -> None:
    """Micro-batches alone show that a step began; its time is not known."""
    if SOURCE not in state.log.series and state.step is not None:
        state.log.series_of(SOURCE).add(Record(state.step))


_RULE = Rule(
    b"iter time: ",
    re.compile(
        rb"\biter (?P<iter>\d{1,12})(?: \|)? step (?P<step>\d{1,12})(?::| \|)[^\n]{0,120}?"
        rb"iter time: (?P<ms>[\d.]{1,20}) ?ms(?P<ends>(?:" + _ENDS + rb")?)",
        re.IGNORECASE,
    ),
    _on_batch,
    begin=(b"iter ",),
)
_COLUMNS = {"iter": STEP, "step": STEP, "ms": Column(), "ends": Column(f"(?:{_ENDS.decode()})?")}


def _measure(cells: Cells) -> Measured:
    """Micro-batches, of which some end a step; the rule reads the last one of these, for its loss."""
    columns = {"step": cells.integers("step"), "ends": np.asarray([len(text) for text in cells.texts("ends")])}
    wall_ns = cells.times_ns("ms", NS_PER_MS)
    wall_ns[np.flatnonzero(columns["ends"])[-1:]] = 0
    return Measured(cells.integers("iter"), wall_ns, columns)


def _add(state: _State, plain: PlainLines, first: int, last: int) -> None:
    rows = plain.rows(first, last)
    batches = np.asarray(rows.iteration, np.int64)
    breaks = np.flatnonzero(np.diff(batches) != 1) + 1
    for start, stop in pairwise((0, *breaks.tolist(), len(batches))):
        row = start
        while row < stop and (row == start or stop - row < FEW):
            _add_row(state, rows, row)
            row += 1
        if row < stop:
            _add_following(state, rows.rows(row, stop))


def _add_row(state: _State, rows: PlainLines, row: int) -> None:
    number, step, wall_ns = int(rows.iteration[row]), int(rows.columns["step"][row]), int(rows.wall_ns[row])
    if number == state.last:
        return  # another rank's copy
    _add_batch(state, number, step, wall_ns)
    if rows.columns["ends"][row]:
        series = state.log.series_of(SOURCE)
        series.stated_interval = 1
        series.add(Record(step, state.wall_ns), rows.label)
        if state.wall_ns is not None:
            state.log.set_fact("gas", state.batches, "records")
        state.wall_ns, state.batches = 0, 0


def _add_following(state: _State, rows: PlainLines) -> None:
    """Add micro-batches of which each follows the one before."""
    is_unknown = state.wall_ns is None and state.batches > 0
    ends, steps = np.flatnonzero(rows.columns["ends"]), rows.columns["step"]
    total_ns = np.cumsum(rows.wall_ns)
    if len(ends):
        wall_ns, batches = np.diff(total_ns[ends], prepend=0), np.diff(ends, prepend=-1)
        wall_ns[0] = -1 if is_unknown else wall_ns[0] + (state.wall_ns or 0)
        batches[0] += state.batches
        series = state.log.series_of(SOURCE)
        series.stated_interval = 1
        add_evenly(series, PlainLines(steps[ends], wall_ns, label=rows.label), 0, len(ends))
        if wall_ns[-1] > 0:
            state.log.set_fact("gas", int(batches[-1]), "records")
        state.wall_ns, state.batches, is_unknown = 0, 0, False
        total_ns = total_ns[ends[-1] :] - total_ns[ends[-1]]
        state.batches = len(total_ns) - 1
    else:
        state.batches += len(total_ns)
    state.wall_ns = None if is_unknown else (state.wall_ns or 0) + int(total_ns[-1])
    state.last, state.step = int(rows.iteration[-1]), int(steps[-1])


FORMAT = Format(
    framework="litgpt",
    state=_State,
    rules=(_RULE,),
    sources=(StepTimeSource(SOURCE),),
    close=_close,
    bulk=read_lines(SOURCE, LinesOfRecords(_RULE, _COLUMNS, _measure), add=_add, drops_copies=False),
)
