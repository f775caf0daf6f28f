"""Which convention a framework's own log used.

A log prints a rounded speed and a rounded time, so each of its lines allows a range of operations per token. A
convention explains the log if its figure lies in the range of every line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perfscope.analyzers.flops.comparison import Convention


class AllowedRange(NamedTuple):
    """The operations per token that one line of a log allows, from the lowest to the highest."""

    step: int
    low: float
    high: float


class LogMatch(NamedTuple):
    """How a log's own figure compares with the conventions.

    Attributes:
        convention: The convention that explains every line; absent for none.
        lines: How many lines state a figure.
        nearest: The convention that is nearest to the log, in the median line.
        nearest_deviation: How far the log is above it, as a share.
    """

    convention: str | None
    lines: int
    nearest: str
    nearest_deviation: float


def match_log(allowed: Sequence[AllowedRange], conventions: Sequence[Convention]) -> LogMatch | None:
    """Find the convention that a log used; absent where no line states a figure or no convention has one.

    Of several that explain every line, the first is taken, so the order of ``conventions`` is the preference.
    """
    figures = [
        (convention.name, convention.flops_per_token)
        for convention in conventions
        if convention.flops_per_token is not None
    ]
    if not allowed or not figures:
        return None
    explaining = [name for name, figure in figures if all(line.low <= figure <= line.high for line in allowed)]
    # The line with the narrowest range is the most precise.
    sharpest = min(allowed, key=lambda line: (line.high - line.low) / line.high)
    logged = (sharpest.low + sharpest.high) / 2
    nearest, figure = min(figures, key=lambda name_and_figure: abs(logged / name_and_figure[1] - 1))
    return LogMatch(explaining[0] if explaining else None, len(allowed), nearest, logged / figure - 1)
