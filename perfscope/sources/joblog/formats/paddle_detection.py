"""PaddleDetection, and PaddleX on top of it: a line every ``log_iter`` iterations, counted from 0 in every epoch.

    [07/21 14:43:00] ppdet.engine INFO: Epoch: [0] [ 20/200] learning_rate: 0.000025 ... loss: 1037.6 eta: 10:39:33
    batch_cost: 6.6231 data_cost: 6.0753 ips: 4.8315 images/s

``batch_cost`` is the mean of the last ``log_iter`` iterations, loading included, evaluation and saves left out. ``ips``
is that of one card, the batch of which follows from both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.constants import MIB, NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, LineMatch, Rule
from perfscope.sources.joblog.step_times import EpochCounter
from perfscope.sources.joblog.text import parse_numbers

SOURCE = "PaddleDetection's batch cost"

_CELL = re.compile(rb"(?<![\w_])(loss|ips|max_mem_reserved|max_mem_allocated): ([\d.eE+-]{1,30})")
_WHOLE = 0.01


@dataclass(slots=True)
class _State(FormatState):
    """Iterations over all epochs."""

    epochs: EpochCounter = field(default_factory=EpochCounter)


def _on_iteration(state: _State, line: LineMatch) -> None:
    log, cells = state.log, parse_numbers(_CELL.findall(line["cells"]))
    record = log.timed(line["seconds"], NS_PER_S, loss=cells.get(b"loss"))
    if record is None or record.wall_ns is None:
        return
    record.iteration = state.epochs.add(int(line["epoch"]), int(line["step"]) + 1, int(line["total"]))
    log.add(SOURCE, record, line, expects_gaps=True)  # lines are counted from the beginning of each epoch
    images = (cells.get(b"ips") or 0.0) * record.wall_ns / NS_PER_S
    if round(images) > 0 and abs(images - round(images)) < _WHOLE * images and not log.has_fact("mbs"):
        log.set_fact("mbs", round(images), "records")
    log.add_memory(MIB, reserved=cells.get(b"max_mem_reserved"), allocated=cells.get(b"max_mem_allocated"))


FORMAT = Format(
    framework="paddledetection",
    state=_State,
    rules=(
        Rule(
            b" batch_cost: ",
            rb"Epoch: \[(?P<epoch>\d{1,6})\] \[ {0,9}(?P<step>\d{1,9})/(?P<total>\d{1,9})\] (?P<cells>(?>[^\n]{0,2000}?"
            rb" batch_cost: )(?P<seconds>[\d.]{1,20}) data_cost: [^\n]{0,300})",
            _on_iteration,
            begin=(b"Epoch: [",),
        ),
    ),
    sources=(SOURCE,),
)
