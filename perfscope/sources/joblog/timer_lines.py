"""Rules for timer lines, which state the time of the parts of an iteration; Megatron and DeepSpeed print them.

Megatron of 2021 prints one line with all timers of one rank. Today it prints one line per timer with the minimum and
maximum over ranks, or the maximum alone. DeepSpeed prints micro-steps, then totals of the step: ``bwd`` contains
``bwd_inner`` and ``bwd_allreduce``, so the step is ``fwd + bwd + step``. At a step of its FLOPs profiler a value can be
negative. The line with all timers is the same in both.
"""

from __future__ import annotations

import re

from perfscope.constants import NS_PER_MS
from perfscope.sources.joblog.log_format import FormatState, LineMatch, aside
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import parse_number, parse_numbers

SOURCE = "DeepSpeed's timers: fwd + bwd + step"

_CELL = re.compile(rb"\| ?([\w/-]++): *(-?[\d.]++)")
_SUMS = ((b"fwd", b"bwd", b"step"), (b"forward", b"backward", b"step"))
_SAVE = b"save-checkpoint"


def _on_all_timers(state: FormatState, line: LineMatch) -> None:
    """``time (ms) | name: value | ...``, of one rank; the line is empty under DeepSpeed's pipeline."""
    log = state.log
    cells = parse_numbers(_CELL.findall(line[1]))
    for name, time_ms in cells.items():
        _add_timer(state, name, time_ms)
    if any(b"microstep" in name or name == b"fwd" for name in cells):
        log.frameworks.add("deepspeed")
    for parts in _SUMS:
        times = [time for time in (cells.get(part) for part in parts) if time is not None]
        if len(times) == len(parts) and sum(times) > 0:
            wall_ns = round(sum(times) * NS_PER_MS) if min(times) >= 0 else None
            log.series_of(SOURCE).add(Record(wall_ns=wall_ns), line.label)


def _on_timer(state: FormatState, line: LineMatch) -> None:
    """One line a timer: the slowest rank counts."""
    _add_timer(state, line[1], parse_number(line[2]))


def _add_timer(state: FormatState, name: bytes, time_ms: float | None) -> None:
    if time_ms is None or name == _SAVE:
        return
    text = name.decode(errors="replace")
    if time_ms < 0:
        remark = f"the timer {text} is negative in places; those lines are left out of its mean"
        state.log.add_remark("negative-timer", remark)
        return
    state.log.add_timer(text, round(time_ms * NS_PER_MS))


_ALL_TIMERS = aside(b"time (ms) |", rb"time \(ms\) (\|[^\n]{0,4000})", _on_all_timers)
DEEPSPEED_RULES = (_ALL_TIMERS,)
MEGATRON_RULES = (
    aside(
        b"..: ",
        rb"\s{2,4}([\w/-]{1,100}) \.{2,90}: (?:\([\d.]{1,20}, {0,20})?([\d.]{1,20}+)\)?\s{0,99}$",
        _on_timer,
        span=(200, 200),
    ),
)
