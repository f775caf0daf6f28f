"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a part stands."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One part of perfscope on this machine.

    Attributes:
        part: What was looked at.
        verdict: ``warn`` where something is missing that not everybody needs, ``fail`` where a part cannot work.
        found: What there is.
        mend: What to do; empty where there is nothing to mend.
    """

    part: str
    verdict: Verdict
    found: str
    mend: str = ""


def ok(part: str, found: str) -> Check:
    """A part that works."""
    return Check(part, Verdict.OK, found)


def warn(part: str, found: str, mend: str = "") -> Check:
    """A part that works in part, or that not everybody needs."""
    return Check(part, Verdict.WARN, found, mend)


def fail(part: str, found: str, mend: str) -> Check:
    """A part that cannot work."""
    return Check(part, Verdict.FAIL, found, mend)
