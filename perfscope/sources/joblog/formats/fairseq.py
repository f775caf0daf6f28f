"""fairseq: a line every ``--log-interval`` updates, as text or as JSON.

    2020-07-17 07:11:02 | INFO | train_inner | epoch 001:   2800 / 160368 loss=9.255, wps=57.3, ups=0.04, wpb=1613, ...
    {"epoch": 27, "update": 26.267, "wps": "1195.4", "wpb": "738.1", "num_updates": "33700", "train_wall": "61", ...}

Words a batch over words a second is the mean time of an update since the line before, more precise than ``ups``. On
TPUs its meters count only the updates that are logged, so the figure is compared with ``wall``, whole seconds since
the start. Before 2020 the meters ran from the beginning of an epoch. Both clocks run on through validation and saves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, aside, counts, disturbs
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.step_times import EpochCounter
from perfscope.sources.joblog.text import parse_numbers
from perfscope.tables.joblog import Disturbance

WORDS = "fairseq's words a batch / words a second"
WALL = "fairseq's wall clock"

_CELL = re.compile(rb"(?<![\w_])\"?(loss|wps|wpb|bsz|num_updates|wall)\"?(?:=|: ) ?\"?([\d.eE+naif,-]{1,30})(?![\w.])")
_ALIKE = 0.05


@dataclass(slots=True)
class _State(FormatState):
    """Updates over all epochs where lines do not number them."""

    epochs: EpochCounter = field(default_factory=EpochCounter)


def _on_update(state: _State, line: LineMatch) -> None:
    cells = parse_numbers(_CELL.findall(line[0]))
    words, speed, updates = cells.get(b"wpb"), cells.get(b"wps"), cells.get(b"num_updates")
    log = state.log
    if not words or not speed or words <= 0 or speed <= 0:
        log.unreadable += 1
        return
    if updates is not None:
        step = int(updates)
    elif line["epoch"] and line["step"]:
        step = state.epochs.add(int(line["epoch"]), int(line["step"]), int(line["total"]))
    else:
        return
    seconds = words / speed
    record = Record(step, round(seconds * NS_PER_S), tokens_per_s=speed, loss=cells.get(b"loss"))
    if cells.get(b"bsz"):
        record.samples_per_s = (cells[b"bsz"] or 0.0) / seconds
    log.add(WORDS, record, line.label, clock_runs_on=True, covers_gaps=True, measures_from_zero=False)
    wall_s = cells.get(b"wall")
    if wall_s is not None:
        log.clock(WALL).add(Record(step, loss=record.loss), round(wall_s * NS_PER_S), NS_PER_S, label=line.label)


def _close(state: _State) -> None:
    """Do not trust the meters where the wall clock contradicts them."""
    medians = state.log.median_times()
    words, wall = medians.get(WORDS), medians.get(WALL)
    if words is not None and wall is not None and abs(words - wall) > _ALIKE * wall:
        state.log.distrust(WORDS, with_rates=True)


FORMAT = LogFormat(
    framework="fairseq",
    state=_State,
    rules=(
        LineRule(
            b" wps=",
            rb"epoch (?P<epoch>\d{1,6}):? {1,9}(?P<step>\d{1,9}) / (?P<total>\d{1,9}) loss=[^\n]{1,200}?"
            rb" wps=[^\n]{1,400}",
            _on_update,
            begin=(b"epoch ",),
        ),
        LineRule(
            b'"wps": ',
            rb'\{"epoch": \d[^\n{}]{0,300}"(?P<epoch>)(?P<step>)(?P<total>)wps": [^\n{}]{0,400}\}',
            _on_update,
            begin=(b'{"epoch": ',),
        ),
        aside(b"valid on '", rb"\| valid on '", disturbs(Disturbance.EVALUATION)),
        aside(b"| INFO | valid | epoch", b"", disturbs(Disturbance.EVALUATION)),
        aside(b"aved checkpoint ", rb"\| [Ss]aved checkpoint \S", disturbs(Disturbance.SAVE)),
        aside(b"num. model params: ", rb"num\. model params: ([\d,]{1,20})", counts("parameters")),
        aside(b"training on ", rb"\| training on (\d{1,6}) (?:GPUs|devices)", counts("gpus")),
    ),
    sources=(WORDS, WALL),
    close=_close,
)
