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

from perfscope.constants import NS_PER_S, S_PER_HOUR, S_PER_MINUTE
from perfscope.sources.joblog.elapsed_clock import ElapsedClock
from perfscope.sources.joblog.epochs import EpochCounter
from perfscope.sources.joblog.line_fields import parse_number
from perfscope.sources.joblog.log_format import Format, FormatState, Role, StepTimeSource
from perfscope.sources.joblog.record import Record
from perfscope.sources.joblog.rules import LineMatch, Rule

SOURCE = "the clock of Lightning's bar"

_EPOCH_BAR = (
    rb"Epoch (\d{1,6}): {1,4}\d{1,3}%(?:\|[^|\n]{0,400}\|)? {0,4}(\d{1,12})/(\d{1,12}) "
    rb"\[(?:(\d{1,5}):)?(\d\d):(\d\d)<([^\]\n]{0,400})\]"
)
#: Without a validation all that is looked for begins alike, which is faster.
_BAR = re.compile(_EPOCH_BAR + rb"()")
_BAR_OR_VALIDATION = re.compile(_EPOCH_BAR + rb"|(Validating|Validation)(?: \w{1,20})?(?: \d{1,3})?: ")
_LOSS = re.compile(rb"(?<![\w])(?:train_)?loss(?:_step)?=([\d.eE+-]{1,20})")
_REACH = 1 << 20


@dataclass(slots=True)
class _State(FormatState):
    """The clock, batches over all epochs, the epoch of the last bar, and whether it has come to its validation."""

    clock: ElapsedClock = field(default_factory=lambda: ElapsedClock(SOURCE))
    epochs: EpochCounter = field(default_factory=EpochCounter)
    epoch: int = -1
    validated: bool = False


def _on_bars(state: _State, line: LineMatch) -> None:
    bars = _BAR_OR_VALIDATION if b"Validati" in line[0] else _BAR
    for epoch_text, step_text, total_text, hours, minutes, seconds, cells, validation in bars.findall(line[0]):
        if validation:
            state.validated = True
            continue
        epoch, step = int(epoch_text), int(step_text)
        if epoch != state.epoch:
            state.clock.restart(state.log)
            state.epoch, state.validated = epoch, False
        if state.validated or b"v_num=" not in cells or step == 0:
            continue
        clock_s = int(hours or 0) * S_PER_HOUR + int(minutes) * S_PER_MINUTE + int(seconds)
        number = state.epochs.add(epoch, step, int(total_text))
        loss = _LOSS.search(cells)
        record = Record(number, loss=parse_number(loss[1]) if loss else None)
        state.clock.add(state.log, record, clock_s * NS_PER_S, NS_PER_S)


def _close(state: _State) -> None:
    state.clock.close(state.log)


FORMAT = Format(
    framework="lightning",
    state=_State,
    rules=(
        Rule(
            b"v_num=",
            re.compile(rb"[^\n]*+(?:\n++[^\n]{0,200}?(?:v_num=|Validati)[^\n]*+)*+"),
            _on_bars,
            reach=_REACH,
            at_line_start=True,
        ),
    ),
    sources=(StepTimeSource(SOURCE),),
    close=_close,
    role=Role.LIBRARY,
)
