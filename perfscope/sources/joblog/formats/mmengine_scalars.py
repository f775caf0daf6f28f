"""MMEngine's ``vis_data/scalars.json`` and the dated JSON file beside it, which has the same lines.

    {"lr": 0.01, "data_time": 0.0009, "loss": 0.8785, "time": 0.0242, "epoch": 1, "iter": 10, "memory": 912, "step": 10}
    {"acc": 0.5, "data_time": 0.0002, "time": 0.0003, "step": 1}

The file has the figures of the text log with all their digits; ``step`` counts over all epochs. Only the text log says
how many iterations a time is the mean of: ten here. The second line is of an evaluation: it has no learning rate, its
time is that of an evaluated batch, and its step may be that of the epoch. Where a line has no ``epoch``, MMEngine
trains by iterations, and its clock runs on through evaluations and saves; of saves the file says nothing. Objects
followed by a comma are of an array and are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.constants import MIB, NS_PER_S
from perfscope.sources.joblog.formats.openmmlab import EngineClock
from perfscope.sources.joblog.log_format import Format, FormatState, LineMatch, Rule
from perfscope.sources.joblog.text import JSON_CELL, parse_number
from perfscope.tables.joblog import Disturbance

SOURCE = "scalars.json's time of an iteration"


@dataclass(slots=True)
class _State(FormatState):
    """What the times contain, the last step, and whether this is an array."""

    clock: EngineClock = field(default_factory=EngineClock)
    last: int = 0
    is_array: bool = False


def _on_object(state: _State, line: LineMatch) -> None:
    state.is_array |= bool(line["comma"])
    cells, log = {name.removeprefix(b"train/"): text for name, text in JSON_CELL.findall(line["cells"])}, state.log
    if state.is_array or not cells.keys() >= {b"data_time", b"time", b"step"}:
        return
    if not cells.keys() & {b"lr", b"base_lr"}:
        if state.last:
            state.clock.pause(Disturbance.EVALUATION)
        return
    step = cells[b"step"]
    if not step.isdigit() or cells.get(b"iter", step) != step:
        return
    record = log.timed(cells[b"time"], NS_PER_S, int(step), loss=parse_number(cells.get(b"loss", b"")), digits=False)
    if record is None:
        return
    if int(step) <= state.last:
        log.on_restart()
    state.last = int(step)
    state.clock.add(log, SOURCE, record, line, by_epoch=b"epoch" in cells)
    log.add_memory(MIB, allocated=parse_number(cells.get(b"memory", b"")))


FORMAT = Format(
    framework="openmmlab",
    state=_State,
    rules=(
        Rule(
            b'"step": ',
            re.compile(rb'\{(?P<cells>"[^\n{}]{1,16000}+)\}(?P<comma>,?)[ \t]*\Z'),
            _on_object,
            begin=(b'{"',),
            identifies=False,
        ),
    ),
    sources=(SOURCE,),
)
