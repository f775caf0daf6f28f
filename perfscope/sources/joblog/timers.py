"""Timer lines: which part of an iteration took how long.

Megatron prints one line of all timers of one rank (2021), or a line a timer with the minimum and maximum over ranks
(today; ``--timing-log-option`` also knows a line a timer with the maximum, and a line a rank). DeepSpeed prints
micro-steps, then totals of the step: ``bwd`` contains ``bwd_inner`` and ``bwd_allreduce``, so that only
``fwd + bwd + step`` is a sum. At a step of its FLOPs profiler a value can be negative.
"""

from __future__ import annotations

import re

from perfscope.constants import NS_PER_MS
from perfscope.sources.joblog.draft import (
    Draft,
    Hit,
    Rule,
    number,
)
from perfscope.sources.joblog.series import Record

SOURCE = "DeepSpeed's timers: fwd + bwd + step"

_CELL = re.compile(rb"([\w/-]+): *(-?[\d.]+)")
_SUMS = ((b"fwd", b"bwd", b"step"), (b"forward", b"backward", b"step"))
_SAVE = b"save-checkpoint"
_ENOUGH = 20_000
_RANKS = 1 << 18
_RANK = re.compile(rb" rank +\d+: ([\d.]+)\s*$")
_NAME = re.compile(rb"  ([\w/-]+):\s*$")


def _line(draft: Draft, hit: Hit) -> None:
    """``time (ms) | name: value | ...``, of one rank; the line is empty under DeepSpeed's pipeline."""
    if draft.timer_lines > _ENOUGH and b"fwd" not in hit[1] and b"forward: " not in hit[1]:
        return
    cells = {name: number(text) for name, text in _CELL.findall(hit[1])}
    for name, value in cells.items():
        _part(draft, name, value)
    if any(b"microstep" in name or name == b"fwd" for name in cells):
        draft.evidence["deepspeed"] += 1
    for parts in _SUMS:
        values = [cells.get(part) for part in parts]
        known = [value for value in values if value is not None]
        if len(known) == len(parts) and sum(known) > 0:
            wall_ns = round(sum(known) * NS_PER_MS) if min(known) >= 0 else None
            draft.of(SOURCE).add(Record(wall_ns=wall_ns))


def _pair(draft: Draft, hit: Hit) -> None:
    """One line a timer: the slowest rank counts."""
    _part(draft, hit[1], number(hit[2]))


def _ranks(draft: Draft, hit: Hit) -> None:
    """A line a timer, and below it a line a rank."""
    slowest: dict[bytes, float] = {}
    name = b""
    for line in hit[0].split(b"\n")[1:]:
        rank, heading = _RANK.search(line), _NAME.search(line)
        time = number(rank[1]) if rank else None
        if time is not None and name:
            slowest[name] = max(time, slowest.get(name, 0.0))
        elif heading:
            name = heading[1]
        else:
            break
    for timer, time in slowest.items():
        _part(draft, timer, time)


def _part(draft: Draft, name: bytes, value: float | None) -> None:
    if value is None or name == _SAVE:
        return
    text = name.decode(errors="replace")
    if value < 0:
        draft.remark("negative-timer", f"the timer {text} is negative in places; those lines are left out of its mean")
        return
    draft.part(text, round(value * NS_PER_MS))


RULES = (
    Rule(b"time (ms) |", re.compile(rb"time \(ms\) \|([^\n]*)"), _line),
    Rule(b"..: ", re.compile(rb"\s{2,4}([\w/-]+) \.{2,}: (?:\([\d.]+, *)?([\d.]+)\)?\s*$", re.MULTILINE), _pair),
    Rule(
        b"times across ranks (ms):",
        re.compile(rb"times across ranks \(ms\):(?:\n[^\n]{1,120})*"),
        _ranks,
        reach=_RANKS,
    ),
)
