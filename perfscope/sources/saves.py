"""The checkpoint saves of a run that the hooks timed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from perfscope import wire
from perfscope.errors import SourceError
from perfscope.sources.run import read_run
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
