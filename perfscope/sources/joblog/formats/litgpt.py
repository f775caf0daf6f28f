"""LitGPT and lit-gpt: a line a micro-batch, with its time.

    Epoch 1 | iter 4 step 1 | loss train: 1.585, val: n/a | iter time: 181.34 ms (step) remaining time: 0:10:00

    iter 77 step 39: loss 10.8259, iter time: 214.40ms (optimizer.step)

The time of a step is the sum over its micro-batches, where every one of them is printed. Pre-training starts the clock
after a micro-batch is loaded, fine-tuning before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfscope.constants import NS_PER_MS
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import parse_number, parse_resolution

SOURCE = "LitGPT's iter time, summed over a step"

_LOSS = re.compile(rb"loss(?: train)?(?: \(curr\))?:? ([\d.eE+naif-]{1,20})")


@dataclass(slots=True)
class _State(FormatState):
    """The micro-batches of the step that is printed: the last one, their time, their number, and the step."""

    last: int | None = None
    wall_ns: int | None = None
    batches: int = 0
    step: int | None = None


def _on_batch(state: _State, line: LineMatch) -> None:
    number, log = int(line["iter"]), state.log
    if state.last == number:
        return  # another rank's copy
    timed = log.timed(line["ms"], NS_PER_MS)
    is_whole = number <= 1 or number - 1 == state.last
    if state.last is not None and number < state.last:
        log.on_restart()
    state.last, state.step = number, int(line["step"])
    if timed is None or timed.wall_ns is None or not is_whole:
        state.wall_ns = None
    elif state.wall_ns is not None or state.batches == 0:
        state.wall_ns = (state.wall_ns or 0) + timed.wall_ns
    state.batches += 1
    if not line["ends"]:
        return
    loss = _LOSS.search(line[0])
    record = Record(state.step, state.wall_ns, loss=parse_number(loss[1]) if loss else None)
    if record.wall_ns is not None:
        record.wall_resolution_ns = round(parse_resolution(line["ms"]) * NS_PER_MS)
        log.set_fact("gas", state.batches, "records")
    log.add(SOURCE, record, line.label, stated_interval=1)
    state.wall_ns, state.batches = 0, 0


def _close(state: _State) -> None:
    """Micro-batches alone show that a step began; its time is not known."""
    if SOURCE not in state.log.series and state.step is not None:
        state.log.series_of(SOURCE).add(Record(state.step))


FORMAT = LogFormat(
    framework="litgpt",
    state=_State,
    rules=(
        LineRule(
            b"iter time: ",
            rb"(?i)\biter (?P<iter>\d{1,12})(?: \|)? step (?P<step>\d{1,12})(?::| \|)[^\n]{0,120}?"
            rb"iter time: (?P<ms>[\d.]{1,20}) ?ms(?P<ends>(?: \((?:optimizer\.step|opt\.step|step)\))?)",
            _on_batch,
            begin=(b"iter ",),
        ),
    ),
    sources=(SOURCE,),
    close=_close,
)
