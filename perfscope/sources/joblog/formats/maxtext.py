"""MaxText: a line a step, counted from 0.

    completed step: 9, seconds: 5.667, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758, total_weights: 196608, ...

``seconds`` is the time between the ends of two steps on the host. JAX returns before the devices are done, so the
first three steps of a start show compilation or mere dispatch (0.002 s); they have no time here. ``total_weights``
counts the tokens of a step over all devices without padding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, LineMatch, Rule
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import parse_number, parse_resolution

SOURCE = "MaxText's seconds"

_DISPATCHED = 3
_CELL = re.compile(rb"(TFLOP/s(?:/device)?|Tokens/s/device|total_weights|(?<![\w_])loss): ([^,\s]{1,30})")
_HALF_A_DIGIT_S = 0.0005
_TFLOPS = (b"TFLOP/s/device", b"TFLOP/s")


@dataclass(slots=True)
class _State(FormatState):
    """The first step of the process, and the last one."""

    first: int | None = None
    last: int | None = None
    tokens: float | None = None


def _on_step(state: _State, line: LineMatch) -> None:
    step, seconds = int(line["step"]), parse_number(line["seconds"])
    if seconds is None or seconds <= 0:
        state.log.unreadable += 1
        return
    if state.first is None or state.last is None or step < state.last:
        state.first = step
    state.last = step
    cells = dict(_CELL.findall(line["cells"]))
    numbers = {name: parse_number(text) for name, text in cells.items()}
    record = Record(iteration=step + 1, loss=numbers.get(b"loss"))
    if state.first > 0 or step >= state.first + _DISPATCHED:
        record.wall_ns = round(seconds * NS_PER_S)
        record.wall_resolution_ns = round(parse_resolution(line["seconds"]) * NS_PER_S)
        record.tokens_per_s_per_gpu = numbers.get(b"Tokens/s/device")
        label = next((name for name in _TFLOPS if numbers.get(name) is not None), None)
        if label is not None:
            record.tflops_per_gpu, record.tflops_resolution = numbers[label], parse_resolution(cells[label])
            state.log.tflops_label = label.decode()
        _set_devices(state, seconds, numbers.get(b"Tokens/s/device"), numbers.get(b"total_weights"))
    state.log.add(SOURCE, record, line)


def _set_devices(state: _State, seconds: float, speed: float | None, tokens: float | None) -> None:
    """Tokens of a step over those of one device, where two steps agree and the quotient is an integer."""
    before, state.tokens = state.tokens, tokens
    if speed is None or speed <= 0 or tokens is None or tokens != before:
        return
    quotient = tokens / (speed * seconds)
    devices = round(quotient)
    if devices > 0 and abs(quotient / devices - 1) <= _HALF_A_DIGIT_S / seconds + 1e-4 < 0.5 / devices:
        state.log.set_fact("gpus", devices, "records")


FORMAT = Format(
    framework="maxtext",
    state=_State,
    rules=(
        Rule(
            b"completed step: ",
            rb"completed step: (?P<step>\d{1,12}), seconds: (?P<seconds>[\d.eE+-]{1,30}), "
            rb"(?P<cells>TFLOP/s[^\n]{0,600})",
            _on_step,
            begin=(b"completed step: ",),
        ),
    ),
    sources=(SOURCE,),
)
