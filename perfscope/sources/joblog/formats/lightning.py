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

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.bar_columns import find_columns, find_runs
from perfscope.sources.joblog.elapsed_clock import ElapsedClock
from perfscope.sources.joblog.epochs import EpochCounter
from perfscope.sources.joblog.line_fields import CLOCK, parse_clocks_s, parse_counts, parse_number
from perfscope.sources.joblog.log_format import Format, FormatState, Role, StepTimeSource
from perfscope.sources.joblog.record import Record
from perfscope.sources.joblog.rules import LineMatch, Rule

SOURCE = "the clock of Lightning's bar"

_EPOCH_BAR = (
    rb"Epoch (\d{1,6}+): {1,4}+\d{1,3}+%(?:\|[^|\n]{0,400}+\|)? {0,4}+(\d{1,12}+)/(\d{1,12}+) "
    rb"\[" + CLOCK + rb"<([^\]\n]{0,400}+)\]"
)
#: Without a validation all that is looked for begins alike, which is faster.
_BAR = re.compile(_EPOCH_BAR + rb"\n?")
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
    pattern = _BAR_OR_VALIDATION if b"Validati" in line[0] else _BAR
    epochs, steps, totals, clocks, cells, *_ = find_columns(pattern, line[0])
    for first, end in find_runs(epochs, totals):
        if not epochs[first]:
            state.validated = True
            continue
        epoch = int(epochs[first])
        if epoch != state.epoch:
            state.clock.restart(state.log)
            state.epoch, state.validated = epoch, False
        if not state.validated:
            columns = (steps[first:end], clocks[first:end], cells[first:end])
            if any(b"v_num=" not in text for text in columns[2]) or b"0" in columns[0]:
                bars = [bar for bar in zip(*columns, strict=True) if b"v_num=" in bar[2] and bar[0] != b"0"]
                columns = ([bar[0] for bar in bars], [bar[1] for bar in bars], [bar[2] for bar in bars])
            if columns[0]:
                _add_bars(state, int(totals[first]), *columns)


def _add_bars(
    state: _State, total: int, steps: Sequence[bytes], clocks: Sequence[bytes], cells: Sequence[bytes]
) -> None:
    """Add bars of one epoch: steps, clocks and figures."""
    numbers = parse_counts(steps)
    last = int(numbers.max())
    numbers += state.epochs.add(state.epoch, last, total) - last

    def record_of(row: int) -> Record:
        loss = _LOSS.search(cells[row])
        return Record(int(numbers[row]), loss=parse_number(loss[1]) if loss else None)

    state.clock.add_each(state.log, numbers, parse_clocks_s(clocks) * NS_PER_S, NS_PER_S, record_of)


def _close(state: _State) -> None:
    state.clock.close(state.log)


FORMAT = Format(
    framework="lightning",
    state=_State,
    rules=(
        Rule(
            b"v_num=",
            re.compile(rb"[^\n]*+(?:\n++(?:[^\nvV]++|v(?!_num=)|V(?!alidati))*+[vV][^\n]*+)*+"),
            _on_bars,
            reach=_REACH,
            at_line_start=True,
        ),
    ),
    sources=(StepTimeSource(SOURCE),),
    close=_close,
    role=Role.LIBRARY,
)
