"""Sizes, counts and times as people write them: parsed and printed here only.

B is 10**9 parameters (never 2**30), GB is 10**9 bytes, GiB is 2**30 bytes. Times become integer nanoseconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, DecimalException

from perfscope.constants import (
    GIGA,
    KILO,
    MEGA,
    MS_PER_S,
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    S_PER_DAY,
    S_PER_HOUR,
    S_PER_MINUTE,
    TERA,
    US_PER_S,
)
from perfscope.errors import UsageError

_COUNT_SUFFIXES = {"": 1, "K": KILO, "M": MEGA, "B": GIGA, "T": TERA}
_COUNT = re.compile(r"(?P<number>\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+)\s*(?P<suffix>[A-Za-z]*)")
#: Of parameters, tokens and nanoseconds.
_LARGEST_COUNT = GIGA * TERA

_NANOSECONDS = {
    "ns": 1,
    "us": NS_PER_US,
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "m": S_PER_MINUTE * NS_PER_S,
    "h": S_PER_HOUR * NS_PER_S,
    "d": S_PER_DAY * NS_PER_S,
}
_TIME_PART = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+)\s*(ns|us|ms|s|m|h|d)?")

_DECIMAL_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")

_RANGE = re.compile(r"\s*(\d{1,6})(?:\s*-\s*(\d{1,6}))?\s*", re.ASCII)


def parse_parameters(text: str) -> int:
    """Read a model size such as ``52B``, ``7.5B``, ``125M`` or ``52e9``; ``UsageError`` where it is none of a model."""
    parameters = _parse_count(text, "a model size", "52B, 7.5B or 125M")
    if not 0 < parameters <= _LARGEST_COUNT:
        raise UsageError(f"a model size of {text} is not possible")
    if parameters < KILO:
        raise UsageError(f"a model of {text} parameters is too small", hint=f"was {text}B or {text}M meant?")
    return parameters


def parse_tokens(text: str) -> int:
    """Read a number of tokens such as ``260B``, ``3.5T`` or ``2.5e9``; ``UsageError`` where it is none."""
    tokens = _parse_count(text, "a number of tokens", "260B, 3.5T or 300M")
    if not 0 < tokens <= _LARGEST_COUNT:
        raise UsageError(f"{text} tokens are not possible")
    return tokens


def _parse_count(text: str, meaning: str, examples: str) -> int:
    """A number with a suffix such as B; ``UsageError`` where the text is none."""
    match = _COUNT.fullmatch(text.strip())
    try:
        if match is not None and (suffix := match["suffix"].upper()) in _COUNT_SUFFIXES:
            return int(Decimal(match["number"].replace("_", "")) * _COUNT_SUFFIXES[suffix])
    except (DecimalException, OverflowError, ValueError):
        pass
    raise UsageError(f"{text!r} is not {meaning}", hint=f"write it as {examples}; B is 10**9")


def parse_duration_ns(text: str) -> int:
    """Read a time such as ``127``, ``127s``, ``2m7s`` or ``127000ms`` as nanoseconds; a bare number is in seconds.

    A text that is no positive time is a ``UsageError``.
    """
    stripped = text.strip()
    total = Decimal(0)
    position = 0
    smallest_unit_ns: int | None = None
    while position < len(stripped):
        match = _TIME_PART.match(stripped, position)
        if match is None or (match[2] is None and (position > 0 or match.end() != len(stripped))):
            raise _no_time(text)
        unit_ns = _NANOSECONDS[match[2] or "s"]
        if smallest_unit_ns is not None and unit_ns >= smallest_unit_ns:
            raise _no_time(text)
        smallest_unit_ns = unit_ns
        try:
            total += Decimal(match[1]) * unit_ns
        except DecimalException:  # 1e999999999
            raise _no_time(text) from None
        position = match.end()
    if not stripped or stripped.startswith("-"):
        raise _no_time(text)
    if not 1 <= total <= _LARGEST_COUNT:
        raise UsageError(f"a time of {text} is not possible", hint="a time is positive: 127, 127s, 2m7s or 127000ms")
    return int(total)


def _no_time(text: str) -> UsageError:
    return UsageError(f"{text!r} is not a time", hint="write it as 127, 127s, 2m7s or 127000ms")


def format_parameters(parameters: int) -> str:
    """Write a number of parameters with four figures and a suffix.

    >>> format_parameters(52_000_000_000), format_parameters(812_445_696)
    ('52B', '812.4M')
    """
    for suffix in ("T", "B", "M", "K"):
        scale = _COUNT_SUFFIXES[suffix]
        if parameters >= scale:
            return f"{parameters / scale:.4g}{suffix}"
    return str(parameters)


def format_bytes(count: int) -> str:
    """Write a number of bytes with a decimal prefix.

    >>> format_bytes(1_624_919_321)
    '1.62 GB'
    """
    value = float(count)
    for unit in _DECIMAL_BYTES:
        if abs(value) < KILO or unit == _DECIMAL_BYTES[-1]:
            return f"{count} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= KILO
    raise AssertionError(count)


def format_seconds(seconds: float) -> str:
    """Write a time with four figures, in the largest unit of which it has at least one.

    >>> format_seconds(0.09628), format_seconds(127.0)
    ('96.28 ms', '127 s')
    """
    for scale, unit in ((1, "s"), (MS_PER_S, "ms"), (US_PER_S, "us")):
        if abs(seconds) * scale >= 1 or unit == "us":
            return f"{seconds * scale:.4g} {unit}"
    raise AssertionError(seconds)


def format_rate(per_s: float) -> str:
    """Write a rate with three figures at least.

    >>> format_rate(1.33126), format_rate(115818.8)
    ('1.33', '115,819')
    """
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"  # noqa: PLR2004 - three figures


def format_count(count: int, noun: str) -> str:
    """Write a count with its noun, in the singular or the plural.

    >>> format_count(1, "table"), format_count(3, "table")
    ('1 table', '3 tables')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def parse_ranges(text: str) -> tuple[int, ...]:
    """Numbers that are written as ranges, in ascending order.

    >>> parse_ranges("7,0-2, 1")
    (0, 1, 2, 7)

    Raises:
        UsageError: The text is not of numbers below a million and of ranges of them.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if high < low:
            raise UsageError(f"{text!r} is not a list of numbers and ranges", hint="write it like 0,3-5")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def format_ranges(numbers: Sequence[int], limit: int | None = None) -> str:
    """Write numbers in ascending order as ranges; no more than ``limit`` of these.

    >>> format_ranges([2, 3, 4, 9])
    '2-4, 9'
    >>> format_ranges([0, 2, 4], 2)
    '0, 2, ...'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [f"{low}-{high}" if low != high else f"{low}" for low, high in ranges]
    return ", ".join(texts if limit is None or len(texts) <= limit else [*texts[:limit], "..."])
