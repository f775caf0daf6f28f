"""PyTorch Lightning's progress bar.

    Epoch 0:  22%|##2       | 4/18 [00:17<01:02,  4.47s/it, loss=9.947, v_num=193315]

``v_num``, the version of the logger, is Lightning's own. A bar counts batches, which are micro-batches where gradients
are accumulated. Its rate is a moving average; step times are differences of its clock, which counts whole seconds and
begins with each epoch. Before version 1.6 the bar also counts the batches of validation: after ``Validating`` the rest
of the epoch is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, WriterRole, aside, sets
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.step_times import EpochCounter
from perfscope.sources.joblog.text import CLOCK, parse_clock_s, parse_number

SOURCE = "the clock of Lightning's bar"

_LOSS = re.compile(rb"(?<![\w])(?:train_)?loss(?:_step)?=([\d.eE+-]{1,20})")


@dataclass(slots=True)
class _State(FormatState):
    """Batches over all epochs, the epoch of the last bar, and whether it has come to its validation."""

    epochs: EpochCounter = field(default_factory=EpochCounter)
    epoch: int = -1
    validated: bool = False


def _on_bar(state: _State, line: LineMatch) -> None:
    epoch, step = int(line["epoch"]), int(line["step"])
    if epoch != state.epoch:
        state.log.clock(SOURCE).restart()
        state.epoch, state.validated = epoch, False
    if state.validated or not step:
        return
    loss = _LOSS.search(line["cells"])
    record = Record(state.epochs.add(epoch, step, int(line["total"])), loss=parse_number(loss[1]) if loss else None)
    state.log.clock(SOURCE).add(record, parse_clock_s(line["clock"]) * NS_PER_S, NS_PER_S)


FORMAT = LogFormat(
    framework="lightning",
    state=_State,
    rules=(
        LineRule(
            b"v_num=",
            rb"Epoch (?P<epoch>\d{1,6}+): {1,4}+\d{1,3}+%(?:\|[^|\n]{0,400}+\|)? {0,4}+(?P<step>\d{1,12}+)/"
            rb"(?P<total>\d{1,12}+) \[" + CLOCK + rb"<(?P<cells>[^\]\n]{0,400}?v_num=[^\]\n]{0,400}+)\]",
            _on_bar,
            begin=(b"Epoch ",),
        ),
        aside(
            b"Validati",
            rb"(?:Validating|Validation)(?: \w{1,20})?(?: \d{1,3})?: {1,4}(?:\d{1,3}%|\d{1,9}it)",
            sets("validated"),
            begin=(b"Validati",),
        ),
    ),
    sources=(SOURCE,),
    role=WriterRole.LIBRARY,
)
