"""Checkpoint saves as they were timed: by hooks on every rank, or by one log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SaveTiming:
    """One save as one rank measured it, or as one log states it.

    Attributes:
        number: Which save of its rank or log it is, from 0.
        rank: The rank; absent for a log.
        step: The training step after which it was saved; absent where unknown.
        blocked_ns: How long it stalled training; absent where it was not timed.
        drained_ns: From the start of the save until all was on disk, where that was later; absent where unknown.
        size_bytes: What was written; absent where unknown.
        asynchronous: Whether training continued while files were written; absent where unknown.
        source: What measured the time.
        path: The destination; absent where unknown.
    """

    number: int
    rank: int | None
    step: int | None
    blocked_ns: int | None
    drained_ns: int | None
    size_bytes: int | None
    asynchronous: bool | None
    source: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Saves:
    """Every save of a run.

    Attributes:
        timings: One entry a save and rank.
        training_ns: Time from the first step of the run to its last, saves included; absent where unknown.
    """

    timings: tuple[SaveTiming, ...]
    training_ns: int | None
