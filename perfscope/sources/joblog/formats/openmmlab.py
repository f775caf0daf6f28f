r"""OpenMMLab: MMEngine, and MMCV before it.

    2023/05/24 20:17:36 - mmengine - INFO - Epoch(train)  [1][ 50/1051]  lr: 9.0e-09  eta: 8:04:44  time: 0.6969  ...
    2021-08-17 17:00:36,627 - mmcls - INFO - Epoch [1][200/5005]\tlr: 1.0e-01, eta: 19 days, 4:23:45, time: 0.196, ...

The time runs from the end of an iteration to the end of the next and so contains the loading of data. MMCV prints the
mean since the last line, MMEngine that of the last 10 iterations: where it prints a line more often, the first 10 of
these contain the first iteration and have no time here. Epochs begin with a new clock; in ``Iter`` mode MMCV's clock
runs on through evaluations and saves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.constants import MIB, NS_PER_S
from perfscope.sources.joblog.epochs import EpochCounter
from perfscope.sources.joblog.line_fields import parse_number, parse_resolution
from perfscope.sources.joblog.line_forms import INTEGER
from perfscope.sources.joblog.line_shapes import Column
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource
from perfscope.sources.joblog.record import Record
from perfscope.sources.joblog.record_lines import STEP, LinesOfRecords, TimedSteps, read_lines
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.tables.joblog import Disturbance

SOURCE = "OpenMMLab's time of an iteration"

_WINDOW = 10
_CELL = re.compile(rb"(?<![\w_])(time|memory|loss): ([\d.eE+naif-]{1,20})")


@dataclass(slots=True)
class _State(FormatState):
    """Iterations over all epochs."""

    epochs: EpochCounter = field(default_factory=EpochCounter)


def _on_iteration(state: _State, line: LineMatch) -> None:
    cells = dict(_CELL.findall(line["cells"]))
    seconds = parse_number(cells.get(b"time", b""))
    if seconds is None or seconds <= 0:
        state.log.unreadable += 1
        return
    in_epoch, total = int(line["step"]), int(line["total"])
    step = state.epochs.add(int(line["epoch"]), in_epoch, total) if line["epoch"] else in_epoch
    log = state.log
    record = Record(step, round(seconds * NS_PER_S), loss=parse_number(cells.get(b"loss", b"")))
    record.wall_resolution_ns = round(parse_resolution(cells[b"time"]) * NS_PER_S)
    series = log.series_of(SOURCE)
    series.expects_gaps = True  # lines are counted from the beginning of each epoch
    if line["engine"]:
        series.stated_interval = _WINDOW
        series.untimed_after_start = _WINDOW
        if step == 1:
            record.wall_ns = None
    else:
        series.clock_runs_on = not line["epoch"]
    if not series.add(record, line.label):
        return
    if not line["epoch"]:
        log.set_fact("train_iterations", total, "records")
    memory = parse_number(cells.get(b"memory", b""))
    log.add_memory(allocated=None if memory is None else memory * MIB)


def _on_evaluation(state: FormatState, _line: LineMatch) -> None:
    state.log.on_disturbance(Disturbance.EVALUATION)


def _on_save(state: FormatState, _line: LineMatch) -> None:
    state.log.on_disturbance(Disturbance.SAVE)


_HEAD = rb"(?P<step>\d{1,9}) ?/ ?(?P<total>\d{1,9})\](?P<cells>[^\n]{0,160}? time: [^\n]{0,1500})"

_RULE = Rule(
    b"data_time: ",
    re.compile(rb" - INFO - (?:Epoch|Iter)(?P<engine>\(train\) )? ?(?:\[ ?(?P<epoch>\d{1,6})\])?\[ {0,9}" + _HEAD),
    _on_iteration,
    begin=(b" - INFO - ",),
)
_COLUMNS = {
    "step": STEP,
    "length": Column(INTEGER, re.compile(rb"/ ?(\d{1,9})\]")),
    "time": Column(cell=re.compile(rb"(?<![\w_])time: ([\d.eE+-]{1,20})")),
    "memory": Column(INTEGER, re.compile(rb"(?<![\w_])memory: (\d{1,15})"), is_optional=True),
}
_TIMED = TimedSteps("time", NS_PER_S, others=("epoch", "length"))


def _close(state: _State) -> None:
    if SOURCE in state.log.series:
        state.log.series[SOURCE].drop_times_after_starts()


def _epochs_of(state: _State) -> EpochCounter:
    return state.epochs


FORMAT = Format(
    framework="openmmlab",
    state=_State,
    rules=(
        _RULE,
        Rule(b"(val) [", re.compile(rb" - INFO - (?:Epoch|Iter)\(val\) "), _on_evaluation, identifies=False),
        Rule(b" - INFO - Saving checkpoint at ", re.compile(rb" Saving checkpoint at \d"), _on_save, identifies=False),
    ),
    sources=(StepTimeSource(SOURCE),),
    bulk=read_lines(
        SOURCE,
        LinesOfRecords(_RULE, {**_COLUMNS, "epoch": STEP}, _TIMED, peaks=("memory",), constants=("length",)),
        LinesOfRecords(_RULE, _COLUMNS, TimedSteps("time", NS_PER_S), peaks=("memory",), constants=("length",)),
        epochs_of=_epochs_of,
    ),
    close=_close,
)
