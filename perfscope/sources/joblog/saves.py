"""Checkpoint saves that a training log states."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perfscope.errors import SourceError
from perfscope.sources.joblog.reading import read_log
from perfscope.tables.joblog import JobLog
from perfscope.tables.saves import Saves, SaveTiming


def read_log_saves(path: Path) -> Saves:
    """Read the saves of a training log.

    Raises:
        SourceError: It cannot be read, or states no save.
    """
    log = read_log(path)
    if not log.saves:
        raise SourceError(path, "states no checkpoint save")
    timings = tuple(
        SaveTiming(
            number=number,
            rank=None,
            step=save.iteration,
            blocked_ns=save.wall_ns,
            drained_ns=save.drained_ns,
            size_bytes=None,
            asynchronous=save.asynchronous or (None if save.wall_ns is None else False),  # its end came first
            source=f"the log's {save.source}" if save.source else "nothing in the log",
        )
        for number, save in enumerate(log.saves)
    )
    return Saves(timings, _training_ns(log))


def _training_ns(log: JobLog) -> int | None:
    """The time of all iterations, and of the saves where no iteration's time contains them; None where unknown."""
    if not len(log.iterations) or np.ma.getmaskarray(log.iterations.wall_ns).any():
        return None
    iterations_ns = int((log.iterations.wall_ns * log.iterations.new).sum())
    contained = bool((log.iterations.disturbed == "save").any())
    return iterations_ns + (0 if contained else sum(save.wall_ns or 0 for save in log.saves))
