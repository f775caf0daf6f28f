"""What looks like a restart, and may be another process with the same label."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from perfscope.sources.joblog.gaps import Gaps


@dataclass(frozen=True, slots=True)
class SuspectedRestart:
    """A suspected restart, with the state to return to if it was another process with the same label."""

    label: bytes | None
    records: int
    attempt: int
    redone: int
    last: int
    first: int
    gaps: Gaps
    counts: Counter[int]
