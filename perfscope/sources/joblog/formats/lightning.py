"""PyTorch Lightning's progress bar.

    Epoch 0:  22%|##2       | 4/18 [00:17<01:02,  4.47s/it, loss=9.947, v_num=193315]

``v_num``, the version of the logger, is Lightning's own. A bar counts batches, which are micro-batches where gradients
are accumulated. Its rate is a moving average; step times are differences of its clock, which counts whole seconds and
begins with each epoch. Before version 1.6 the bar also counts the batches of validation: after ``Validating`` the rest
of the epoch is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from operator import contains

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.bar_columns import find_columns
from perfscope.sources.joblog.elapsed_clock import ElapsedClock
from perfscope.sources.joblog.epochs import EpochCounter
from perfscope.sources.joblog.line_fields import CLOCK, parse_clocks_s, parse_counts, parse_number
from perfscope.sources.joblog.log_format import Format, FormatState, Role, StepTimeSource, Sweep
from perfscope.sources.joblog.record import Record
from perfscope.tables.columns import Bool, Int64

SOURCE = "the clock of Lightning's bar"

_EPOCH_BAR = (
    rb"Epoch (\d{1,6}+): {1,4}+\d{1,3}+%(?:\|[^|\n]{0,400}+\|)? {0,4}+(\d{1,12}+)/(\d{1,12}+) "
    rb"\[" + CLOCK + rb"<([^\]\n]{0,400}+)\]"
)
#: Without a validation all that is looked for begins alike, which is faster.
_BAR = re.compile(_EPOCH_BAR + rb"\n?")
_BAR_OR_VALIDATION = re.compile(
    _EPOCH_BAR + rb"|(Validating|Validation)(?: \w{1,20})?(?: \d{1,3})?: {1,4}(?:\d{1,3}%|\d{1,9}it)"
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
    pattern = _BAR_OR_VALIDATION if b"Validati" in text else _BAR
    epochs, steps, totals, clocks, cells, *_ = find_columns(pattern, text)
    if not all(cells) or not all(map(contains, cells, repeat(b"v_num="))):  # of Lightning's bars alone, or a validation
        rows = [row for row, cell in enumerate(cells) if not epochs[row] or b"v_num=" in cell]
        epochs, steps, totals, clocks, cells = (
            [column[row] for row in rows] for column in (epochs, steps, totals, clocks, cells)
        )
    if epochs:
        is_bar = np.asarray([epoch is not None for epoch in epochs])
        _add_bars(state, is_bar, *(list(filter(None, column)) for column in (epochs, steps, totals, clocks, cells)))


def _add_bars(
    state: _State,
    is_bar: Bool,
    epochs: Sequence[bytes],
    steps: Sequence[bytes],
    totals: Sequence[bytes],
    clocks: Sequence[bytes],
    cells: Sequence[bytes],
) -> None:
    """Add bars; ``is_bar`` says of each line whether it is one, or a validation after which an epoch's are left out."""
    lines = np.flatnonzero(is_bar)
    is_validation = ~is_bar
    if not len(lines):
        state.validated = True
        return
    epoch, step = parse_counts(epochs), parse_counts(steps)
    begins = np.diff(epoch, prepend=state.epoch) != 0
    began = np.maximum.accumulate(np.where(begins, lines, -1))
    validated = np.maximum.accumulate(np.where(is_validation, np.arange(len(is_bar)), -1))
    is_late = (validated[lines] > began) | (state.validated & (began < 0))
    state.validated = bool(validated[-1] > began[-1] or (state.validated and began[-1] < 0))
    state.epoch = int(epoch[-1])
    rows = np.flatnonzero(~is_late & (step > 0))
    begun = np.cumsum(begins)
    if len(rows):
        length = parse_counts(totals)[rows]
        numbers = state.epochs.add_many(epoch[rows], step[rows], length)
        clocks_ns = parse_clocks_s(clocks)[rows] * NS_PER_S
        have_loss = any(map(contains, cells, repeat(b"loss")))
        record_of = partial(_record, numbers, cells, rows)
        anew = np.flatnonzero(np.diff(begun[rows], prepend=0))
        state.clock.add_each(state.log, numbers, clocks_ns, NS_PER_S, record_of, anew, have_loss=have_loss)
    if begun[-1] > (begun[rows[-1]] if len(rows) else 0):
        state.clock.restart(state.log)


def _record(numbers: Int64, cells: Sequence[bytes], places: Int64, row: int) -> Record:
    loss = _LOSS.search(cells[places[row]])
    return Record(int(numbers[row]), loss=parse_number(loss[1]) if loss else None)


def _close(state: _State) -> None:
    state.clock.close(state.log)


FORMAT = Format(
    framework="lightning",
    state=_State,
    rules=(),
    sweeps=(Sweep((b"v_num=",), _on_text),),
    sources=(StepTimeSource(SOURCE),),
    close=_close,
    role=Role.LIBRARY,
)
