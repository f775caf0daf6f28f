"""Rules for timer lines, which state the time of the parts of an iteration; Megatron and DeepSpeed print them.

Megatron prints one line with all timers of one rank (2021), or one line per timer with the minimum and maximum over
ranks (today; with ``--timing-log-option`` also one line per timer with the maximum, or one line per rank). DeepSpeed
prints micro-steps, then totals of the step: ``bwd`` contains ``bwd_inner`` and ``bwd_allreduce``, so the step is
``fwd + bwd + step``. At a step of its FLOPs profiler a value can be negative. The line with all timers is the same in
both.
"""

from __future__ import annotations

import re

import numpy as np

from perfscope.constants import NS_PER_MS
from perfscope.sources.joblog.bulk.cells import Cells, times_ns
from perfscope.sources.joblog.bulk.line_shapes import Column, Measured
from perfscope.sources.joblog.content.builder import ENOUGH_TIMER_LINES
from perfscope.sources.joblog.log_format import FormatState
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.splitting.split_block import PlainLines
from perfscope.sources.joblog.text.line_fields import parse_number, parse_numbers

SOURCE = "DeepSpeed's timers: fwd + bwd + step"

_CELL = re.compile(rb"\| ?([\w/-]++): *(-?[\d.]++)")
_SUMS = ((b"fwd", b"bwd", b"step"), (b"forward", b"backward", b"step"))
_SAVE = b"save-checkpoint"
_RANK_LINES_REACH = 1 << 18
_RANK = re.compile(rb" rank +\d+: ([\d.]+)\s*$")
_NAME = re.compile(rb"  ([\w/-]+):\s*$")


def _on_all_timers(state: FormatState, line: LineMatch) -> None:
    """``time (ms) | name: value | ...``, of one rank; the line is empty under DeepSpeed's pipeline."""
    log = state.log
    if log.timer_lines > ENOUGH_TIMER_LINES and b"fwd" not in line[1] and b"forward: " not in line[1]:
        return
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


def has_totals(line: LineMatch) -> bool:
    """Whether a line has the totals of a step, and no timer but theirs."""
    names = [name.decode(errors="replace") for name, _ in _CELL.findall(line[1])]
    sums = [parts for parts in _SUMS if all(part.decode() in names for part in parts)]
    return len(sums) == 1 and len(set(names)) == len(names) and set(names) <= set(TOTALS)


def measure_totals(cells: Cells) -> Measured:
    """The time of a step, and of each timer."""
    parts = next(parts for parts in _SUMS if all(part.decode() in cells for part in parts))
    first, second, third = (cells.numbers(part.decode()) for part in parts)
    wall_ns = times_ns(first + second + third, NS_PER_MS)
    timers = {}
    for name in TOTALS:
        if name in cells:
            wall_ns[~cells.are_times(name, NS_PER_MS)] = 0
            timers[name] = cells.times_ns(name, NS_PER_MS)
    return Measured(np.arange(len(wall_ns)), wall_ns, timers)


def add_totals(state: FormatState, plain: PlainLines) -> None:
    """Add lines of totals that were read many at once."""
    ranks = state.log.ranks
    for name, times in plain.columns.items():
        state.log.add_timer(name, ranks * (int(times.sum()) if len(times) > 1 else int(times[0])), ranks * len(times))
    if "fwd" in plain.columns:
        state.log.frameworks.add("deepspeed")
    state.log.series_of(SOURCE).add_unnumbered(plain.wall_ns, plain.label)


def _on_timer(state: FormatState, line: LineMatch) -> None:
    """One line a timer: the slowest rank counts."""
    _add_timer(state, line[1], parse_number(line[2]))


def _on_timers_of_ranks(state: FormatState, line: LineMatch) -> None:
    """A line a timer, and below it a line a rank."""
    slowest: dict[bytes, float] = {}
    name = b""
    for text in line[0].split(b"\n")[1:]:
        rank, heading = _RANK.search(text), _NAME.search(text)
        time_ms = parse_number(rank[1]) if rank else None
        if time_ms is not None and name:
            slowest[name] = max(time_ms, slowest.get(name, 0.0))
        elif heading:
            name = heading[1]
        else:
            break
    for timer, time_ms in slowest.items():
        _add_timer(state, timer, time_ms)


def _add_timer(state: FormatState, name: bytes, time_ms: float | None) -> None:
    if time_ms is None or name == _SAVE:
        return
    text = name.decode(errors="replace")
    if time_ms < 0:
        remark = f"the timer {text} is negative in places; those lines are left out of its mean"
        state.log.add_remark("negative-timer", remark)
        return
    state.log.add_timer(text, round(time_ms * NS_PER_MS))


TOTALS_RULE = Rule(b"time (ms) |", re.compile(rb"time \(ms\) (\|[^\n]{0,4000})"), _on_all_timers, identifies=False)
DEEPSPEED_RULES = (TOTALS_RULE,)
_PARTS = ("", "_inner", "_allreduce")
#: The totals of a step.
TOTALS = {
    name: Column(r"\d[\d.]*", re.compile(rb"\| " + name.encode() + rb": *(\d[\d.]*)"), is_optional=True)
    for name in ("fwd", "forward", *(f"{pass_}{part}" for pass_ in ("bwd", "backward") for part in _PARTS), "step")
}
MEGATRON_RULES = (
    Rule(
        b"..: ",
        re.compile(
            rb"\s{2,4}([\w/-]{1,100}) \.{2,90}: (?:\([\d.]{1,20}, {0,20})?([\d.]{1,20}+)\)?\s{0,99}$", re.MULTILINE
        ),
        _on_timer,
        identifies=False,
        span=(200, 200),
    ),
    Rule(
        b"times across ranks (ms):",
        re.compile(rb"times across ranks \(ms\):(?:\n[^\n]{1,120})*"),
        _on_timers_of_ranks,
        reach=_RANK_LINES_REACH,
        begin=(b"times across ranks (ms):",),
        identifies=False,
    ),
)
