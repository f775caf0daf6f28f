"""MMEngine's ``vis_data/scalars.json`` and the dated JSON file beside it, which has the same lines.

    {"lr": 0.01, "data_time": 0.0009, "loss": 0.8785, "time": 0.0242, "epoch": 1, "iter": 10, "memory": 912, "step": 10}
    {"acc": 0.5, "data_time": 0.0002, "time": 0.0003, "step": 1}

The same figures as in the text log with all their digits, and ``step`` over all epochs; the text log alone says how
many iterations a time is the mean of, ten here. The second line is of an evaluation: it has no learning rate, its
time is that of an evaluated batch, and its step may be that of the epoch. Where a line has no ``epoch``, MMEngine
trains by iterations, and its clock runs on through evaluations and saves; of saves the file says nothing. Objects
with a comma behind them are of an array and are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from perfscope.constants import MIB, NS_PER_S
from perfscope.sources.joblog.bulk.cells import Cells
from perfscope.sources.joblog.bulk.line_forms import INTEGER
from perfscope.sources.joblog.bulk.line_shapes import Column, Measured
from perfscope.sources.joblog.bulk.record_lines import LinesOfRecords, read_lines
from perfscope.sources.joblog.bulk.started_lines import add_starts
from perfscope.sources.joblog.formats.openmmlab import EngineClock
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.splitting.split_block import PlainLines
from perfscope.sources.joblog.text.line_fields import parse_number
from perfscope.tables.joblog import Disturbance

SOURCE = "scalars.json's time of an iteration"

_KEY = re.compile(
    rb'"(?:train/)?([\w.]{1,60})": (-?[\d.]{1,30}(?:[eE][+-]?\d{1,4})?|NaN|-?Infinity|null)(?=, "|$)',
)
_TIMES = {b"data_time", b"time", b"step"}


@dataclass(slots=True)
class _State(FormatState):
    """What the times contain, the last step, and whether this is an array."""

    clock: EngineClock = field(default_factory=EngineClock)
    last: int = 0
    is_array: bool = False


def _on_object(state: _State, line: LineMatch) -> None:
    state.is_array |= bool(line["comma"])
    if state.is_array:
        return
    names = dict(_KEY.findall(line["cells"]))
    if not names.keys() >= _TIMES:
        return
    if not names.keys() & {b"lr", b"base_lr"}:
        if state.last:
            state.clock.pause(Disturbance.EVALUATION)
        return
    step, stated = names[b"step"], names.get(b"iter", names[b"step"])
    if not step.isdigit() or stated != step:
        return
    log, seconds = state.log, parse_number(names[b"time"])
    if seconds is None or seconds <= 0:
        log.unreadable += 1
        return
    if int(step) <= state.last:
        log.on_restart()
    state.last = int(step)
    record = Record(int(step), round(seconds * NS_PER_S), loss=parse_number(names.get(b"loss", b"")))
    if state.clock.add(log, SOURCE, record, line.label, by_epoch=b"epoch" in names):
        memory = parse_number(names.get(b"memory", b""))
        log.add_memory(allocated=None if memory is None else memory * MIB)


def _is_training(line: LineMatch) -> bool:
    names = dict(_KEY.findall(line["cells"]))
    is_one = names.keys() >= _TIMES and bool(names.keys() & {b"lr", b"base_lr"}) and names[b"step"].isdigit()
    return is_one and line.line == line.match.start() and not line["comma"]


def _measure(cells: Cells) -> Measured:
    """What has no time, or two numbers, is for the rule, as is the first iteration, whose time counts nowhere."""
    steps = cells.integers("step")
    wall_ns = np.maximum(cells.times_ns("time", NS_PER_S), 0)
    stated = cells.integers("iter") if "iter" in cells else steps
    epochs = {"epochs": cells.integers("epoch")} if "epoch" in cells else {}
    return Measured(steps, np.where((steps > 1) & (stated == steps), wall_ns, 0), epochs)


def _add(state: _State, plain: PlainLines, first: int, last: int) -> None:
    log, clock, by_epoch = state.log, state.clock, "epochs" in plain.columns
    if first >= last or state.is_array:
        return
    while first < last and clock.paused is not None and not by_epoch:
        number = int(plain.iteration[first])
        if number <= state.last:
            log.on_restart()
        clock.add(log, SOURCE, Record(number, int(plain.wall_ns[first])), plain.label, by_epoch=by_epoch)
        state.last, first = number, first + 1
    if first < last:
        add_starts(log.series_of(SOURCE), plain, first, last, after=state.last)
        state.last = clock.last = int(plain.iteration[last - 1])


def _close(state: _State) -> None:
    if SOURCE in state.log.series:
        state.log.series[SOURCE].drop_times_after_starts()


_RULE = Rule(
    b'"step": ',
    re.compile(rb'\{(?P<cells>"[^\n{}]{1,16000}+)\}(?P<comma>,?)[ \t]*\Z'),
    _on_object,
    begin=(b'{"',),
    identifies=False,
)
_COLUMNS = {
    "step": Column(INTEGER, re.compile(rb'"(?:train/)?step": (\d{1,15})')),
    "iter": Column(INTEGER, re.compile(rb'"(?:train/)?iter": (\d{1,15})'), is_optional=True),
    "epoch": Column(INTEGER, re.compile(rb'"(?:train/)?epoch": (\d{1,15})'), is_optional=True),
    "time": Column(cell=re.compile(rb'"(?:train/)?time": ([\d.eE+-]{1,30})')),
    "memory": Column(INTEGER, re.compile(rb'"(?:train/)?memory": (\d{1,15})'), is_optional=True),
}

FORMAT = Format(
    framework="openmmlab",
    state=_State,
    rules=(_RULE,),
    counts_lines=True,
    sources=(StepTimeSource(SOURCE),),
    close=_close,
    bulk=read_lines(
        SOURCE, LinesOfRecords(_RULE, _COLUMNS, _measure, peaks=("memory",), is_record=_is_training), add=_add
    ),
)
