"""Checkpoint saves as they were timed: by hooks on every rank, or by one log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SaveTiming:
    """One call that saved, as one rank measured it, or one save as a log states it; absent is unknown.

    See ``perfscope.wire.records.CheckpointRecord`` for what is not described here.

    Attributes:
        number: Which one of its process or log it is, from 0.
        rank, host: Absent for a log.
        blocked_ns: How long it stalled training; absent where it was not timed.
        drained_ns: From the start of the save until all was on disk, where that was later.
        attempt: 0 for the rank's first process in the run, 1 after a restart.
        stalls_ns: The intervals in which it stalled training, on a wall clock that all ranks share: its call, and
            waits for its end; empty for a log.
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
    attempt: int = 0
    host: str | None = None
    stalls_ns: tuple[tuple[int, int], ...] = ()
    files: tuple[tuple[str, int | None], ...] | None = None
    file_count: int | None = None


@dataclass(frozen=True, slots=True)
class Saves:
    """Every save of a run: one entry a call and rank, or a save of a log.

    ``training_ns`` is the time from the beginning of the run's first step to the end of its last step or save; absent
    where unknown. ``ranks`` are empty for a log.
    """

    timings: tuple[SaveTiming, ...]
    training_ns: int | None
    ranks: tuple[int, ...] = ()
