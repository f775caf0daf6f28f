"""torchtune: the bar of its recipes, and a line a step of its StdoutLogger and DiskLogger.

    1|25|Loss: 1.2621808052062988:  26%|##5       | 26/101 [06:45<17:27, 13.96s/it]
    Step 1 | loss:1.2345 lr:2e-05 tokens_per_second_per_gpu:1234.5 peak_memory_reserved:12.3

The bar names the epoch, the step and its loss; it counts the steps of an epoch, in which gradients are accumulated. It
is drawn again with the old name when it moves on, and such a line is left out. Its rate is a moving average; step
times are differences of its clock, which counts whole seconds, begins with each epoch and runs on through validations.
The lines of the loggers state no time and no batch: the tokens of one step, without padding where that is masked,
over the time since the step before and over the GPUs. Memory is in GiB. Older lines state no throughput either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from perfscope.constants import GIB, NS_PER_S
from perfscope.sources.joblog.bulk.cells import Cells
from perfscope.sources.joblog.bulk.line_shapes import Column, Measured
from perfscope.sources.joblog.bulk.record_lines import STEP, LinesOfRecords, read_lines
from perfscope.sources.joblog.log_format import Format, FormatState, StepTimeSource, Sweep
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.step_times.bar_columns import find_bars, find_runs
from perfscope.sources.joblog.step_times.elapsed_clock import ElapsedClock
from perfscope.sources.joblog.text.line_fields import CLOCK, parse_number, parse_numbers
from perfscope.tables.columns import Int64
from perfscope.tables.joblog import Disturbance

BAR = "the clock of torchtune's bar"
SOURCE = "tokens_per_second_per_gpu"

_CELL = re.compile(rb"(?<!\w)(\w++):(\S+)")
_ANCHOR = b"|Loss: "
_BAR = re.compile(
    rb"(?<!\d)(?P<epoch>\d{1,6}+)\|(?P<number>\d{1,12}+)\|Loss: (?P<loss>[^:|\n]{1,40}+): {1,4}+\d{1,3}+%"
    rb"\|[^|\n]{0,400}+\| {0,4}+(?P<step>\d{1,12}+)/(?P<length>\d{1,12}+) \[" + CLOCK + rb"<"
)
_NOWHERE = np.empty(0, np.int64)


@dataclass(slots=True)
class _State(FormatState):
    """The clock of the bar, and the epoch that it counts."""

    clock: ElapsedClock = field(default_factory=lambda: ElapsedClock(BAR))
    epoch: int = -1


def _on_bars(state: _State, text: bytes) -> None:
    bars = find_bars(_BAR, text, _ANCHOR)
    epochs, numbers, steps, lengths = (bars.integers(name) for name in ("epoch", "number", "step", "length"))
    clocks_ns = bars.clocks_s("clock") * NS_PER_S
    for first, end in find_runs(epochs, lengths):
        state.log.frameworks.add("torchtune")
        epoch, length = int(epochs[first]), int(lengths[first])
        counted = steps[first:end]
        is_named_right = (counted > 0) & ((numbers[first:end] - counted) % max(length, 1) == 0)
        rows = first + (
            np.flatnonzero(is_named_right) if length else _NOWHERE
        )  # others have the name of the step before
        if len(rows) and epoch != state.epoch:
            state.clock.restart(state.log)
            state.epoch = epoch
        numbers_of_rows = steps[rows] + (max(epoch, 1) - 1) * length
        record_of = partial(_record, numbers_of_rows, bars, rows)
        state.clock.add_each(state.log, numbers_of_rows, clocks_ns[rows], NS_PER_S, record_of)


def _record(steps: Int64, bars: Cells, places: Int64, row: int) -> Record:
    return Record(int(steps[row]), loss=parse_number(bars.text("loss", int(places[row]))))


def _on_step(state: _State, line: LineMatch) -> None:
    cells = parse_numbers(_CELL.findall(line["cells"]))
    record = Record(
        iteration=int(line["step"]),
        loss=cells.get(b"loss"),
        tokens_per_s_per_gpu=cells.get(b"tokens_per_second_per_gpu"),
    )
    if state.log.series_of(SOURCE).add(record, line.label):
        state.log.add_memory(
            allocated=_bytes(cells.get(b"peak_memory_alloc")), reserved=_bytes(cells.get(b"peak_memory_reserved"))
        )


def _on_validation(state: _State, _line: LineMatch) -> None:
    state.log.on_disturbance(Disturbance.EVALUATION)


def _bytes(gib: float | None) -> float | None:
    return None if gib is None else gib * GIB


def _close(state: _State) -> None:
    state.clock.close(state.log)


_RULE = Rule(
    b" | loss:",
    re.compile(rb"Step (?P<step>\d{1,12}) \| (?P<cells>loss:\S{1,40} lr:[^\n]{0,1000})"),
    _on_step,
    begin=(b"Step ",),
)
_PEAKS = {
    name: Column(cell=re.compile(rb" " + name.encode() + rb":([\d.]{1,30})"), is_optional=True)
    for name in ("peak_memory_alloc", "peak_memory_reserved")
}


def _measure(cells: Cells) -> Measured:
    """The lines state no time."""
    steps = cells.integers("step")
    return Measured(steps, np.full_like(steps, -1))


FORMAT = Format(
    framework="torchtune",
    state=_State,
    rules=(
        _RULE,
        Rule(b" | val_loss:", re.compile(rb"Step \d{1,12} \| val_loss:"), _on_validation, begin=(b"Step ",)),
    ),
    sweeps=(Sweep((_ANCHOR,), _on_bars),),
    sources=(StepTimeSource(BAR), StepTimeSource(SOURCE)),
    close=_close,
    bulk=read_lines(SOURCE, LinesOfRecords(_RULE, {"step": STEP, **_PEAKS}, _measure, peaks=tuple(_PEAKS))),
)
