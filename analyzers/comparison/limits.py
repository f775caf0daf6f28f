"""Limits on changes, such as ``step_time>+3%``: exceeded only where the whole interval lies beyond them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from perfscope.analyzers.comparison.change import Change
from perfscope.analyzers.comparison.side import Figure
from perfscope.errors import UsageError
from perfscope.report import Json

_LIMIT = re.compile(r"\s*([a-zA-Z_ -]+?)\s*([<>])\s*([+-]?)\s*(\d+(?:\.\d+)?)\s*(%?)\s*")
_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit.

    Attributes:
        text: As it was typed.
        figure: What it is on.
        is_upper: Whether it is exceeded by what is above it.
        share: The change, as a share of A.
    """

    text: str
    figure: Figure
    is_upper: bool
    share: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison says to a limit.

    Attributes:
        limit: The limit.
        is_exceeded: Whether the whole interval lies beyond it; None where that cannot be told.
        reason: What was decided, in words.
    """

    limit: Limit
    is_exceeded: bool | None
    reason: str

    def data(self) -> dict[str, Json]:
        """One entry of ``limits``."""
        return {"limit": self.limit.text, "exceeded": self.is_exceeded, "reason": self.reason}


def parse_limit(text: str) -> Limit:
    """Parse a limit.

    Raises:
        UsageError: It is none.
    """
    match = _LIMIT.fullmatch(text)
    figures = ", ".join(Figure)
    if match is None:
        raise UsageError(
            f"--fail-on {text!r} is no limit", hint=f"such as 'step_time>+3%' or 'tflops<-3%'; figures: {figures}"
        )
    name, sign, direction, number, percent = match.groups()
    if not percent:
        raise UsageError(f"--fail-on {text!r} has no %", hint=f"limits are changes in percent: '{text.strip()}%'")
    normal = name.strip().lower().replace(" ", "_").replace("-", "_")
    if normal not in list(Figure):
        raise UsageError(f"--fail-on {text!r} names no figure that is compared", hint=f"figures: {figures}")
    share = float(number) / _PERCENT * (-1 if direction == "-" else 1)
    return Limit(text.strip(), Figure(normal), sign == ">", share)


def check_limit(limit: Limit, changes: Mapping[Figure, Change], reasons: Mapping[Figure, str]) -> Verdict:
    """Hold a comparison's figures against a limit."""
    change = changes.get(limit.figure)
    if change is None:
        return Verdict(limit, None, f"not checked: {reasons.get(limit.figure, 'the figure is not known')}")
    if change.interval is None:
        return Verdict(limit, None, f"cannot tell: {change.reason}")
    low, high = change.interval
    words = f"{change.change:+.2%}, interval {low:+.2%} to {high:+.2%}"
    nearest = low if limit.is_upper else high
    is_exceeded = nearest > limit.share if limit.is_upper else nearest < limit.share
    if is_exceeded:
        return Verdict(limit, is_exceeded, f"exceeded: {words}")
    is_beyond = change.change > limit.share if limit.is_upper else change.change < limit.share
    return Verdict(limit, is_exceeded, f"not proven: {words} contains the limit" if is_beyond else f"kept: {words}")
