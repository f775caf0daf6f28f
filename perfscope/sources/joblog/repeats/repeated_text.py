"""Text that repeats itself byte by byte: the length of its period, and where the repetitions end."""

from __future__ import annotations

_PROBE = 256
_LONGEST_PERIOD = 1 << 14
_FEWEST_PERIODS = 12
_FEWEST_BYTES = 1 << 14
_MOST_CANDIDATES = 64


def find_period(text: bytes) -> tuple[int, int] | None:
    r"""The length of the lines that a text repeats from its beginning on, and where the last whole repetition ends.

    >>> find_period(b"step 1\nstep 2\n" * 2000 + b"end")
    (14, 28000)
    """
    probe = b"\n" + text[:_PROBE]
    period = 0
    for _ in range(_MOST_CANDIDATES):
        period = text.find(probe, period, _LONGEST_PERIOD + len(probe)) + 1
        if period == 0:
            return None
        least = max(_FEWEST_PERIODS * period, _FEWEST_BYTES)
        if len(text) >= least and text[period:least] == text[: least - period]:
            return period, _end_of_repetitions(text, period, least)
    return None


def _end_of_repetitions(text: bytes, period: int, least: int) -> int:
    """Where a text ends to repeat itself, a whole number of periods from its beginning."""
    same, step = least, least
    while same + step <= len(text) and text[same : same + step] == text[same - period : same - period + step]:
        same += step
        step *= 2
    while step:
        if same + step <= len(text) and text[same : same + step] == text[same - period : same - period + step]:
            same += step
        step //= 2
    return same // period * period
