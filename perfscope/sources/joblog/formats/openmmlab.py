r"""OpenMMLab: MMEngine, and MMCV before it.

    2023/05/24 20:17:36 - mmengine - INFO - Epoch(train)  [1][ 50/1051]  lr: 9.0e-09  eta: 8:04:44  time: 0.6969  ...
    2021-08-17 17:00:36,627 - mmcls - INFO - Epoch [1][200/5005]\tlr: 1.0e-01, eta: 19 days, 4:23:45, time: 0.196, ...

The time runs from the end of an iteration to the end of the next and so contains the loading of data. MMCV prints the
mean since the last line. MMEngine prints the mean of the last 10 iterations, or of the number in its configuration.
Where it prints lines more often, the first 10 contain the first iteration and have no time here. Epochs begin with a
new clock; in ``Iter`` mode the clock runs on through evaluations and saves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.constants import MIB, NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, aside
from perfscope.sources.joblog.step_times import EpochCounter
from perfscope.sources.joblog.text import parse_number
from perfscope.tables.joblog import Disturbance

SOURCE = "OpenMMLab's time of an iteration"

_ASSUMED = "times are taken for means of ten iterations, MMEngine's default: the log does not print its log_processor"
_CELL = re.compile(rb"(?<![\w_])(time|memory|loss): ([\d.eE+naif-]{1,20})")


@dataclass(slots=True)
class _State(FormatState):
    """Iterations over all epochs, and of how many iterations MMEngine's times are the mean.

    ``paused`` is the last iteration before an evaluation or a save through which the clock runs on, and which it was.
    """

    epochs: EpochCounter = field(default_factory=lambda: EpochCounter(1))
    is_engine: bool = False
    window: int = 10
    has_window: bool = False
    last: int = 0
    paused: tuple[int, Disturbance] | None = None


def _on_iteration(state: _State, line: LineMatch) -> None:
    log, cells = state.log, dict(_CELL.findall(line["cells"]))
    record = log.timed(cells.get(b"time", b""), NS_PER_S, loss=parse_number(cells.get(b"loss", b"")))
    if record is None:
        return
    in_epoch, total = int(line["step"]), int(line["total"])
    record.iteration = state.epochs.add(int(line["epoch"]), in_epoch, total) if line["epoch"] else in_epoch
    settings: dict[str, int | bool] = {"expects_gaps": True}  # lines are counted from the beginning of each epoch
    log.series_of(SOURCE).clock_runs_on = not line["epoch"]  # epochs begin with a new clock
    if line["engine"]:
        state.is_engine = True
        _look_back(state, record.iteration)
        settings |= {"stated_interval": state.window, "untimed_after_start": state.window}
        if record.iteration == 1:
            record.wall_ns = None
    log.add(SOURCE, record, line.label, **settings)
    if not line["epoch"]:
        log.set_fact("train_iterations", total, "records")
    log.add_memory(MIB, allocated=parse_number(cells.get(b"memory", b"")))


def _look_back(state: _State, iteration: int) -> None:
    """Whether a mean of the last iterations contains a pause; an iteration without a number is the last one."""
    series = state.log.series_of(SOURCE)
    if state.paused is not None and series.clock_runs_on:
        paused, kind = state.paused
        if paused < iteration <= paused + state.window:
            series.on_disturbance(kind)
        else:
            state.paused = None
    state.last = iteration


def _on_evaluation(state: _State, _line: LineMatch) -> None:
    _pause(state, Disturbance.EVALUATION)


def _on_save(state: _State, line: LineMatch) -> None:
    _pause(state, Disturbance.SAVE, int(line[1]) if line[2] == b"iterations" else None)


def _pause(state: _State, kind: Disturbance, iteration: int | None = None) -> None:
    if state.is_engine:
        state.paused = (state.last if iteration is None else iteration, kind)
    state.log.on_disturbance(kind, is_in_times=not state.is_engine)


def _on_window(state: _State, line: LineMatch) -> None:
    state.window, state.has_window = max(int(line[1]), 1), True


def _close(state: _State) -> None:
    if state.is_engine and not state.has_window:
        state.log.add_remark("window-assumed", _ASSUMED)


FORMAT = LogFormat(
    framework="openmmlab",
    state=_State,
    rules=(
        LineRule(
            b"data_time: ",
            rb" - INFO - (?:Epoch|Iter)(?P<engine>\(train\) )? {0,9}(?:\[ ?(?P<epoch>\d{1,6})\])?\[ {0,9}"
            rb"(?P<step>\d{1,9}) ?/ ?(?P<total>\d{1,9})\](?P<cells>[^\n]{0,160}? time: [^\n]{0,1500})",
            _on_iteration,
            begin=(b" - INFO - ",),
        ),
        aside(b"(val) [", rb" - INFO - (?:Epoch|Iter)\(val\) ", _on_evaluation),
        aside(b" - INFO - Saving checkpoint at ", rb" Saving checkpoint at (\d{1,9}) (iterations|epochs)", _on_save),
        aside(
            b"log_processor = dict(",
            rb"log_processor = dict\([^()]{0,300}?\bwindow_size=(\d{1,6})\b",
            _on_window,
            spans_lines=True,
            begin=(b"log_processor = dict(",),
        ),
    ),
    sources=(SOURCE,),
    close=_close,
)
