"""Checkpoint saves: those of a run that the hooks timed, and those that a training log tells of."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from perfscope import wire
from perfscope.errors import SourceError
from perfscope.sources.joblog.read import read_log
from perfscope.sources.run import read_run
from perfscope.tables.joblog import JobLog
from perfscope.tables.saves import Saves, SaveTiming


def read_run_saves(path: Path) -> Saves:
    """Read the saves of a run's folder.

    Raises:
        SourceError: It is no run, or no save was timed in it.
    """
    run = read_run(path)
    timings: list[SaveTiming] = []
    for file in sorted((path / wire.RANKS).glob(f"*/{wire.CHECKPOINTS_FILE}")):
        rank = int(file.parent.name.partition(".")[0])
        timings.extend(_timing(number, rank, line) for number, line in enumerate(_lines(file)))
    if not timings:
        raise SourceError(path, "holds no timed checkpoint save", hint="--log reads saves from a training log")
    ends = [table.end_ns for table in run.steps if len(table)]
    training_ns = max((int(column[-1] - column[0]) for column in ends), default=0)
    return Saves(tuple(timings), training_ns or None)


def read_log_saves(path: Path) -> Saves:
    """Read the saves of a training log.

    Raises:
        SourceError: It cannot be read, or tells of no save.
    """
    log = read_log(path)
    if not log.saves:
        raise SourceError(path, "tells of no checkpoint save")
    timings = tuple(
        SaveTiming(
            number=number,
            rank=None,
            step=save.iteration,
            blocked_ns=save.wall_ns,
            drained_ns=None,
            size_bytes=None,
            asynchronous=save.asynchronous or (None if save.wall_ns is None else False),  # its end came first
            source=f"the log's {save.source}" if save.source else "nothing in the log",
        )
        for number, save in enumerate(log.saves)
    )
    return Saves(timings, _training_ns(log))


def _training_ns(log: JobLog) -> int | None:
    """The time of all iterations, and of the saves where no iteration's time contains them; None where unknown."""
    if log.folded is not None or not len(log.iterations) or np.ma.getmaskarray(log.iterations.wall_ns).any():
        return None
    iterations_ns = int((log.iterations.wall_ns * log.iterations.span).sum())
    contained = bool((log.iterations.disturbed == "save").any())
    return iterations_ns + (0 if contained else sum(save.wall_ns or 0 for save in log.saves))


def _lines(file: Path) -> list[wire.CheckpointRecord]:
    """The whole records of a file; a killed process can leave half a line at its end."""
    records = []
    for line in file.read_bytes().split(b"\n"):
        try:
            records.append(msgspec.json.decode(line, type=wire.CheckpointRecord))
        except msgspec.MsgspecError:
            continue
    return records


def _timing(number: int, rank: int, record: wire.CheckpointRecord) -> SaveTiming:
    return SaveTiming(
        number=number,
        rank=rank,
        step=record.step,
        blocked_ns=record.end_ns - record.start_ns,
        drained_ns=None if record.drained_ns is None else record.drained_ns - record.start_ns,
        size_bytes=record.size_bytes,
        asynchronous=record.asynchronous,
        source=record.source,
    )
