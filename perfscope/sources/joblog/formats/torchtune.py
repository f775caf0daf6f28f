"""torchtune: the bar of its recipes, and a line a step of its StdoutLogger and DiskLogger.

    1|25|Loss: 1.2621808052062988:  26%|##5       | 26/101 [06:45<17:27, 13.96s/it]
    Step 1 | loss:1.2345 lr:2e-05 tokens_per_second_per_gpu:1234.5 peak_memory_reserved:12.3

The bar names the epoch, the step and its loss; it counts the steps of an epoch, in which gradients are accumulated. It
is drawn again with the old name when it moves on, and such a line is left out. Its rate is a moving average; step times
are differences of its clock, which counts whole seconds, begins with each epoch and runs on through validations. The
lines of the loggers state no time and no batch. Their rate is the tokens of one step over the time since the previous
step and over the GPUs. Padding that is masked does not count. Memory is in GiB. Older lines state no throughput either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfscope.constants import GIB, NS_PER_S
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, disturbs
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import CLOCK, parse_clock_s, parse_number, parse_numbers
from perfscope.tables.joblog import Disturbance

BAR = "the clock of torchtune's bar"
SOURCE = "tokens_per_second_per_gpu"

_CELL = re.compile(rb"(?<!\w)(\w++):(\S+)")


@dataclass(slots=True)
class _State(FormatState):
    """The epoch that the bar counts."""

    epoch: int = -1


def _on_bar(state: _State, line: LineMatch) -> None:
    epoch, number, step, length = (int(line[name]) for name in ("epoch", "number", "step", "length"))
    if not step or not length or (number - step) % length:
        return  # it has the name of the step before
    if epoch != state.epoch:
        state.log.clock(BAR).restart()
        state.epoch = epoch
    record = Record(step + (max(epoch, 1) - 1) * length, loss=parse_number(line["loss"]))
    state.log.clock(BAR).add(record, parse_clock_s(line["clock"]) * NS_PER_S, NS_PER_S)


def _on_step(state: _State, line: LineMatch) -> None:
    cells = parse_numbers(_CELL.findall(line["cells"]))
    speed = cells.get(b"tokens_per_second_per_gpu")
    state.log.add(SOURCE, Record(int(line["step"]), loss=cells.get(b"loss"), tokens_per_s_per_gpu=speed), line.label)
    allocated, reserved = cells.get(b"peak_memory_alloc"), cells.get(b"peak_memory_reserved")
    state.log.add_memory(GIB, allocated=allocated, reserved=reserved)


FORMAT = LogFormat(
    framework="torchtune",
    state=_State,
    rules=(
        LineRule(
            b"|Loss: ",
            rb"(?<!\d)(?P<epoch>\d{1,6}+)\|(?P<number>\d{1,12}+)\|Loss: (?P<loss>[^:|\n]{1,40}+): {1,4}+\d{1,3}+%"
            rb"\|[^|\n]{0,400}+\| {0,4}+(?P<step>\d{1,12}+)/(?P<length>\d{1,12}+) \[" + CLOCK + rb"<",
            _on_bar,
            span=(20, 520),
        ),
        LineRule(
            b" | loss:",
            rb"Step (?P<step>\d{1,12}) \| (?P<cells>loss:\S{1,40} lr:[^\n]{0,1000})",
            _on_step,
            begin=(b"Step ",),
        ),
        LineRule(b" | val_loss:", rb"Step \d{1,12} \| val_loss:", disturbs(Disturbance.EVALUATION), begin=(b"Step ",)),
    ),
    sources=(BAR, SOURCE),
)
