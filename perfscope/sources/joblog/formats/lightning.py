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
from functools import partial

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.bulk.cells import Cells
from perfscope.sources.joblog.log_format import Format, FormatState, Role, StepTimeSource, Sweep
from perfscope.sources.joblog.series.epochs import EpochCounter
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.step_times.bar_columns import find_bars
from perfscope.sources.joblog.step_times.elapsed_clock import ElapsedClock
from perfscope.sources.joblog.text.line_fields import CLOCK, parse_number
from perfscope.tables.columns import Bool, Int64

SOURCE = "the clock of Lightning's bar"

_ANCHOR = b"v_num="
_EPOCH_BAR = (
    rb"Epoch (?P<epoch>\d{1,6}+): {1,4}+\d{1,3}+%(?:\|[^|\n]{0,400}+\|)? {0,4}+(?P<step>\d{1,12}+)/"
    rb"(?P<total>\d{1,12}+) \[" + CLOCK + rb"<(?P<cells>[^\]\n]{0,400}+)\]"
)
#: Where there is no validation, all that is looked for begins alike, which is faster.
_BAR = re.compile(_EPOCH_BAR)
_BAR_OR_VALIDATION = re.compile(
    _EPOCH_BAR + rb"|(?:Validating|Validation)(?: \w{1,20})?(?: \d{1,3})?: {1,4}(?:\d{1,3}%|\d{1,9}it)"
)
_LOSS = re.compile(rb"(?<![\w])(?:train_)?loss(?:_step)?=([\d.eE+-]{1,20})")


@dataclass(slots=True)
class _State(FormatState):
    """The clock, batches over all epochs, the epoch of the last bar, and whether it has come to its validation."""

    clock: ElapsedClock = field(default_factory=lambda: ElapsedClock(SOURCE))
    epochs: EpochCounter = field(default_factory=EpochCounter)
    epoch: int = -1
    validated: bool = False


def _on_text(state: _State, text: bytes) -> None:
    """Bars of all epochs, and the validations between them."""
    state.log.frameworks.add("lightning")
    validates = b"Validati" in text
    lines = find_bars(_BAR_OR_VALIDATION, text, b": ") if validates else find_bars(_BAR, text, _ANCHOR)
    is_bar = lines.contain("cells", _ANCHOR)  # of Lightning
    is_bar = is_bar[is_bar | ~lines.contain("epoch", b"0")]
    bars = lines.rows(lines.contain("cells", _ANCHOR))
    if len(is_bar):
        _add_bars(state, is_bar, bars)


def _add_bars(state: _State, is_bar: Bool, bars: Cells) -> None:
    """Add bars; ``is_bar`` says of each line whether it is one, or a validation after which an epoch's are left out."""
    lines = np.flatnonzero(is_bar)
    is_validation = ~is_bar
    if not len(lines):
        state.validated = True
        return
    epoch, step = bars.integers("epoch"), bars.integers("step")
    begins = np.diff(epoch, prepend=state.epoch) != 0
    began = np.maximum.accumulate(np.where(begins, lines, -1))
    validated = np.maximum.accumulate(np.where(is_validation, np.arange(len(is_bar)), -1))
    is_late = (validated[lines] > began) | (state.validated & (began < 0))
    state.validated = bool(validated[-1] > began[-1] or (state.validated and began[-1] < 0))
    state.epoch = int(epoch[-1])
    rows = np.flatnonzero(~is_late & (step > 0))
    begun = np.cumsum(begins)
    if len(rows):
        numbers = state.epochs.add_many(epoch[rows], step[rows], bars.integers("total")[rows])
        clocks_ns = bars.clocks_s("clock")[rows] * NS_PER_S
        have_loss = bool(bars.contain("cells", b"loss").any())
        record_of = partial(_record, numbers, bars, rows)
        anew = np.flatnonzero(np.diff(begun[rows], prepend=0))
        state.clock.add_each(state.log, numbers, clocks_ns, NS_PER_S, record_of, anew, have_loss=have_loss)
    if begun[-1] > (begun[rows[-1]] if len(rows) else 0):
        state.clock.restart(state.log)


def _record(numbers: Int64, bars: Cells, places: Int64, row: int) -> Record:
    loss = _LOSS.search(bars.text("cells", int(places[row])))
    return Record(int(numbers[row]), loss=parse_number(loss[1]) if loss else None)


def _close(state: _State) -> None:
    state.clock.close(state.log)


FORMAT = Format(
    framework="lightning",
    state=_State,
    rules=(),
    sweeps=(Sweep((_ANCHOR,), _on_text),),
    sources=(StepTimeSource(SOURCE),),
    close=_close,
    role=Role.LIBRARY,
)
