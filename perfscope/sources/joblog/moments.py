"""The moments at which iterations ended, from the times that logs print in front of their lines.

Megatron-LM, DeepSpeed and most others print ``[2026-11-21 00:26:15,116]`` or ``2026-11-21 00:26:15``. A line without a
time has that of the last line that has one. What else happened between two iterations shows in lines that name it.
"""

from __future__ import annotations

import re
from pathlib import Path

from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.errors import SourceError
from perfscope.sources.joblog.line_fields import parse_timestamp_ns
from perfscope.tables.logged_moments import LoggedMoment, LoggedMoments

_ITERATION = re.compile(rb"\biteration\s+(\d+)\s*/|\bglobal_step[=: ]+(\d+)|\bstep[=: ]\s*(\d+)\b", re.IGNORECASE)
_ELAPSED = re.compile(rb"elapsed time per iteration \((ms|s)\):\s*([0-9.]+)")
_SAVE_TIMER = re.compile(rb"save-checkpoint[^:(|]*[:.]*\s*\(?(?:[0-9.]+,\s*)?([0-9.]+)\)?")
_SAVE = re.compile(rb"sav(?:ing|ed) (?:model )?checkpoint|save-checkpoint", re.IGNORECASE)
_EVALUATION = re.compile(rb"validation loss|\beval(?:uation|_loss|uating)", re.IGNORECASE)
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
        stated = parse_timestamp_ns(line, 0, len(line))
        if stated is not None:
            now_ns = stated
            first_ns = stated if first_ns is None else first_ns
        if ranks is None and (world := _WORLD.search(line)) is not None:
            ranks = int(world[1])
        has_evaluation |= _EVALUATION.search(line) is not None
        if _SAVE.search(line) is not None:
            has_save = True
            timer = _SAVE_TIMER.search(line)
            saved_ns += round(float(timer[1]) * NS_PER_MS) if timer is not None else 0
        number = _iteration(line)
        if number is None or now_ns is None or (moments and number == moments[-1].iteration):
            continue
        moments.append(LoggedMoment(now_ns, number, _elapsed_ns(line), saved_ns, has_evaluation, has_save))
        saved_ns, has_evaluation, has_save = 0, False, False
    if first_ns is None or now_ns is None or not moments:
        raise SourceError(path, "has no line with a time and the number of an iteration")
    return LoggedMoments(str(path), first_ns, max(now_ns, moments[-1].t_ns), tuple(moments), ranks)


def _iteration(line: bytes) -> int | None:
    match = _ITERATION.search(line)
    return None if match is None else int(next(group for group in match.groups() if group))


def _elapsed_ns(line: bytes) -> int | None:
    match = _ELAPSED.search(line)
    if match is None:
        return None
    return round(float(match[2]) * (NS_PER_MS if match[1] == b"ms" else NS_PER_S))
