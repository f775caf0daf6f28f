"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Whether a part works."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One part of perfscope on this machine.

    Attributes:
        part: What was checked.
        verdict: ``warn`` where something is missing that not everybody needs, ``fail`` where a part cannot work.
        finding: What the check found.
        fix: What the user can do; empty where nothing has to be done.
    """

    part: str
    verdict: Verdict
    finding: str
    fix: str = ""


def ok(part: str, finding: str) -> Check:
    """A part that works."""
    return Check(part, Verdict.OK, finding)


def warn(part: str, finding: str, fix: str = "") -> Check:
    """A part that works in part, or that not everybody needs."""
    return Check(part, Verdict.WARN, finding, fix)


def fail(part: str, finding: str, fix: str) -> Check:
    """A part that cannot work."""
    return Check(part, Verdict.FAIL, finding, fix)
