"""MMCV's ``YYYYMMDD_HHMMSS.log.json``: a line of set-up, then one for each printed training iteration or evaluation.

    {"mode": "train", "epoch": 1, "iter": 50, "lr": 0.01, "memory": 3100, "data_time": 0.02, "loss": 1.5, "time": 0.44}
    {"mode": "val", "epoch": 1, "iter": 625, "lr": 0.01, "bbox_mAP": 0.29}

``time`` is the mean since the line before, with five decimals. ``iter`` counts from the beginning of each epoch where
MMCV trains by epochs, else from the beginning of the training. The file does not say which; only in the first case does
``iter`` fall when an epoch begins. The file does not state the length of an epoch either: these records have no number
over all epochs. Where MMCV trains by iterations, the clock runs on through evaluations and saves; of saves the file
says nothing. Some evaluations are called "train", too: they have no time. Objects followed by a comma are of an array
and are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfscope.constants import MIB, NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, LineMatch, Rule
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import JSON_CELL, parse_number
from perfscope.tables.joblog import Disturbance

BY_ITERATION = "log.json's time of an iteration"
BY_EPOCH = "log.json's time of an iteration of an epoch"

_OF_EVERY_LINE = {b"lr", b"memory", b"momentum"}
_RESOLUTION_NS = NS_PER_S // 100_000


@dataclass(slots=True)
class _State(FormatState):
    """The last training iteration, whether its numbers begin anew in every epoch, and an evaluation since; an array."""

    epoch: int = 1
    iteration: int = 0
    is_by_epoch: bool = False
    has_evaluated: bool = False
    is_array: bool = False


def _on_line(state: _State, line: LineMatch) -> None:
    state.is_array |= bool(line["comma"])
    cells, log = dict(JSON_CELL.findall(line["cells"])), state.log
    if state.is_array:
        return
    if line["mode"] == b"val" or not {b"time", b"data_time"} <= cells.keys():  # some versions call it "train"
        state.has_evaluated |= line["mode"] == b"val" or bool(cells.keys() - _OF_EVERY_LINE)
        return
    seconds = parse_number(cells[b"time"])
    if seconds is None or seconds <= 0:
        log.unreadable += 1
        return
    epoch, iteration = int(line["epoch"]), int(line["iter"])
    numbered, unnumbered = log.series_of(BY_ITERATION), log.series_of(BY_EPOCH)
    numbered.clock_runs_on = True
    goes_back = iteration <= state.iteration
    if epoch > state.epoch and (goes_back or not state.iteration):
        state.is_by_epoch = True
    if goes_back:
        numbered.on_restart()
        if epoch <= state.epoch:
            unnumbered.on_restart()
    elif state.has_evaluated:
        numbered.on_disturbance(Disturbance.EVALUATION)
    state.epoch, state.iteration, state.has_evaluated = epoch, iteration, False
    loss, wall_ns = parse_number(cells.get(b"loss", b"")), round(seconds * NS_PER_S)
    for series, number in ((unnumbered, None), (numbered, iteration)):
        series.add(Record(number, wall_ns, loss=loss, wall_resolution_ns=_RESOLUTION_NS), line.label)
    log.add_memory(MIB, allocated=parse_number(cells.get(b"memory", b"")))


def _close(state: _State) -> None:
    """Keep the records with the numbers that are right."""
    series = state.log.series
    if BY_ITERATION in series:
        del series[BY_ITERATION if state.is_by_epoch else BY_EPOCH]
        if state.is_by_epoch:
            state.log.set_fact("unnumbered_runs", 1, "records")


FORMAT = Format(
    framework="openmmlab",
    state=_State,
    rules=(
        Rule(
            b'{"mode": "',
            re.compile(
                rb'\{"mode": "(?P<mode>train|val)", "epoch": (?P<epoch>\d{1,9}), "iter": (?P<iter>\d{1,12}), '
                rb"(?P<cells>(?:[^\n{}]++|\{[^\n{}]*+\})++)\}(?P<comma>,?)[ \t]*\Z"
            ),
            _on_line,
            begin=(b'{"mode": "',),
            identifies=False,
        ),
    ),
    sources=(BY_ITERATION, BY_EPOCH),
    close=_close,
)
