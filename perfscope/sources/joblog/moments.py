"""The moments at which iterations ended, from the times that logs print in front of their lines.

Megatron-LM, DeepSpeed, OpenMMLab and most others print ``[2026-11-21 00:26:15,116]`` or ``2026-11-21 00:26:15``. A line
without a time has that of the last line that has one. What else happened between two iterations shows in lines that
name it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.errors import SourceError
from perfscope.sources.joblog.text.line_fields import parse_number, parse_timestamp_ns
from perfscope.tables.logged_moments import LoggedMoment, LoggedMoments

_ITERATION = re.compile(rb"\biteration\s+(\d+)\s*/|\bglobal_step[=: ]+(\d+)|\bstep[=: ]\s*(\d+)\b", re.IGNORECASE)
#: Of OpenMMLab, whose iterations begin again in each epoch; Detectron2's, PaddleSeg's and nanotron's go on.
_OF_EPOCH = re.compile(rb"\bEpoch(?:\(train\))?\s*\[(\d{1,6})\]\s*\[\s*(\d{1,9})/(\d{1,9})\]")
_NAMED = re.compile(rb"\biter(?:ation)?\s*[:=]\s*(\d+)\b")
#: nanotron writes the month first.
_MONTH_FIRST = re.compile(rb"\b(\d\d)/(\d\d)/(\d{4}) (\d\d:\d\d:\d\d)")
_ELAPSED = re.compile(rb"elapsed time per iteration \((ms|s)\):\s*([0-9.]+)")
_SAVE_TIMER = re.compile(rb"save-checkpoint[^:(|]*[:.]*\s*\(?(?:[0-9.]+,\s*)?([0-9.]+)\)?")
_SAVE = re.compile(rb"sav(?:ing|ed) (?:model )?checkpoint|save-checkpoint", re.IGNORECASE)
_EVALUATION = re.compile(rb"validation loss|\beval(?:uation|_loss|uating)", re.IGNORECASE)
#: A number that is so many times the next one, which goes on from the one before, was damaged.
_LEAP = 100
#: No iteration is shorter; a log's first line may stand behind a month of iterations.
_SHORTEST_STEP_NS = 1000
_LONGEST_START_NS = 31 * 86400 * NS_PER_S
_LONGEST_NS = 10**18
_MOST_DIGITS = 15
_WORLD = re.compile(rb"\bworld[_ ]size[=:' ]+(\d+)", re.IGNORECASE)


def read_moments(path: Path) -> LoggedMoments:
    """Read a log.

    Raises:
        SourceError: It cannot be read, or has no line with a time and the number of an iteration.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    first_ns = now_ns = None
    moments: list[LoggedMoment] = []
    saved_ns, has_evaluation, has_save, ranks = 0, False, False, None
    for line in lines:
        stated = _moment_ns(line)
        if stated is not None:
            now_ns = stated
            first_ns = stated if first_ns is None else first_ns
        if ranks is None and (world := _WORLD.search(line)) is not None:
            ranks = int(world[1])
        has_evaluation |= _EVALUATION.search(line) is not None
        if _SAVE.search(line) is not None:
            has_save = True
            timer = _SAVE_TIMER.search(line)
            saved_ns += (_to_ns(timer[1], NS_PER_MS) or 0) if timer is not None else 0
        number = _iteration(line)
        if number is None or now_ns is None or (moments and number == moments[-1].iteration):
            continue
        moments.append(LoggedMoment(now_ns, number, _elapsed_ns(line), saved_ns, has_evaluation, has_save))
        saved_ns, has_evaluation, has_save = 0, False, False
    if first_ns is None or now_ns is None or not moments:
        raise SourceError(path, "has no line with a time and the number of an iteration")
    possible, damage = _without_leaps(moments, path.name)
    damage += _describe_clock(possible, path.name)
    last_ns = max(now_ns, *(moment.t_ns for moment in possible))
    return LoggedMoments(str(path), first_ns, last_ns, tuple(possible), ranks, tuple(damage))


def _without_leaps(moments: Sequence[LoggedMoment], name: str) -> tuple[list[LoggedMoment], list[str]]:
    """The moments without those whose number a log cannot have reached, which are named."""
    possible: list[LoggedMoment] = []
    damage: list[str] = []
    for index, moment in enumerate(moments):
        before = possible[-1] if possible else None
        leap = moment.iteration - (before.iteration if before else 0)
        after = moments[index + 1].iteration if index + 1 < len(moments) else None
        is_alone = after is not None and (before.iteration if before else 0) < after < moment.iteration
        gap_ns = max(moment.t_ns - before.t_ns if before else 0, _LONGEST_START_NS if before is None else NS_PER_S)
        if (is_alone and after is not None and leap > _LEAP * after) or (before and leap * _SHORTEST_STEP_NS > gap_ns):
            damage.append(f"{name}: iteration {moment.iteration} cannot be, and its line is left out")
        else:
            possible.append(moment)
    return possible, damage


def _describe_clock(moments: Sequence[LoggedMoment], name: str) -> list[str]:
    """That the clock goes back, where it does: the time across is unknown and counts as none."""
    back_ns = [before.t_ns - after.t_ns for before, after in pairwise(moments) if after.t_ns < before.t_ns]
    if not back_ns:
        return []
    times = "once" if len(back_ns) == 1 else f"{len(back_ns)} times"
    return [f"{name}: its clock goes back {times}, by up to {max(back_ns) / NS_PER_S:.0f} s: the parts are doubtful"]


def _moment_ns(line: bytes) -> int | None:
    stated = parse_timestamp_ns(line, 0, len(line))
    if stated is None and (match := _MONTH_FIRST.match(line)) is not None:
        month, day, year, clock = match.groups()
        text = b"%s-%s-%s %s" % (year, month, day, clock)
        return parse_timestamp_ns(text, 0, len(text))
    return stated


def _iteration(line: bytes) -> int | None:
    of_epoch = _OF_EPOCH.search(line)
    if of_epoch is not None:
        epoch, number, length = map(int, of_epoch.groups())
        return (epoch - 1) * length + number if epoch else None
    match = _ITERATION.search(line) or _NAMED.search(line)
    digits = b"" if match is None else next(group for group in match.groups() if group)
    return int(digits) if 0 < len(digits) <= _MOST_DIGITS else None


def _elapsed_ns(line: bytes) -> int | None:
    match = _ELAPSED.search(line)
    if match is None:
        return None
    return _to_ns(match[2], NS_PER_MS if match[1] == b"ms" else NS_PER_S)


def _to_ns(digits: bytes, unit_ns: int) -> int | None:
    """A time in words of a log; None where it is no number."""
    number = parse_number(digits)
    return None if number is None or number * unit_ns >= _LONGEST_NS else round(number * unit_ns)
