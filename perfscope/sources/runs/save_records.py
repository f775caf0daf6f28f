"""The records of checkpoint saves of all ranks, on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from perfscope import wire
from perfscope.constants import NS_PER_S
from perfscope.sources.runs.records import decode_checkpoint, read_rank_record, read_records
from perfscope.tables.columns import Int64, present
from perfscope.tables.saves import Saves, SaveTiming
from perfscope.tables.steps import Steps
from perfscope.wire.records import CheckpointRecord

#: Ranks that save together are not stalled at quite the same moments.
_SHORTEST_WAIT_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class ProcessSaves:
    """The saves of one process of a rank.

    Attributes:
        rank, attempt: The process.
        host: Its machine; absent where unknown.
        offset_ns: What its monotonic clock is behind the wall clock.
        records: Its saves, in order.
    """

    rank: int
    attempt: int
    host: str | None
    offset_ns: int
    records: tuple[CheckpointRecord, ...]


def read_process_saves(folder: Path, rank: int, attempt: int, damage: list[str]) -> ProcessSaves:
    """Read the saves of one process; ``damage`` gets a text for each line that cannot be read."""
    records = tuple(read_records(folder / wire.CHECKPOINTS_FILE, decode_checkpoint, damage))
    identity = read_rank_record(folder)
    if identity is None:
        return ProcessSaves(rank, attempt, None, 0, records)
    return ProcessSaves(rank, attempt, identity.host, identity.wall_ns - identity.monotonic_ns, records)


def to_saves(processes: Sequence[ProcessSaves], steps: Iterable[Steps]) -> Saves | None:
    """The saves of all processes on one clock; None where there is none."""
    if not any(process.records for process in processes):
        return None
    offsets_ns = _host_offsets_ns(processes)
    timings = tuple(
        _to_timing(number, process, record, offsets_ns[process.rank, process.attempt])
        for process in processes
        for number, record in enumerate(process.records)
    )
    ranks = tuple(sorted({process.rank for process in processes}))
    return Saves(timings, _training_ns(timings, steps, offsets_ns), ranks)


def _host_offsets_ns(processes: Sequence[ProcessSaves]) -> dict[tuple[int, int], int]:
    """The offset of each process's clock: processes of one host have one monotonic clock, until it starts again."""
    first_ns: dict[str | None, int] = {}
    offsets_ns: dict[tuple[int, int], int] = {}
    for process in processes:
        shared_ns = first_ns.setdefault(process.host, process.offset_ns)
        is_shared = process.host is not None and abs(process.offset_ns - shared_ns) < NS_PER_S
        offsets_ns[process.rank, process.attempt] = shared_ns if is_shared else process.offset_ns
    return offsets_ns


def _to_timing(number: int, process: ProcessSaves, record: CheckpointRecord, offset_ns: int) -> SaveTiming:
    stalls_ns = ((record.start_ns, record.end_ns), *(record.waits or ()))
    return SaveTiming(
        number=number,
        rank=process.rank,
        step=record.step,
        blocked_ns=sum(end_ns - start_ns for start_ns, end_ns in stalls_ns),
        drained_ns=None if record.drained_ns is None else record.drained_ns - record.start_ns,
        size_bytes=record.size_bytes,
        asynchronous=record.asynchronous,
        source=record.source,
        path=record.path,
        attempt=process.attempt,
        host=process.host,
        stalls_ns=tuple((start_ns + offset_ns, end_ns + offset_ns) for start_ns, end_ns in stalls_ns),
        staged_ns=None if record.staged_ns is None else record.staged_ns - record.start_ns,
        files=record.files,
        file_count=record.file_count,
    )


def _training_ns(
    timings: Iterable[SaveTiming], steps: Iterable[Steps], offsets_ns: dict[tuple[int, int], int]
) -> int | None:
    """From the beginning of the first step to the end of the last step or save; None where no step was seen."""
    begins_ns, ends_ns = [], []
    for table in steps:
        offset_ns = offsets_ns.get((table.rank, table.attempt), 0)
        first_ns = int(table.wall_ns[0]) if present(table.wall_ns)[0] else 0
        begins_ns.append(int(table.end_ns[0]) - first_ns + offset_ns)
        ends_ns.append(int(table.end_ns[-1]) + offset_ns)
    if not ends_ns:
        return None
    stalls_ns = [stall for timing in timings for stall in timing.stalls_ns]
    begins_ns += [start_ns for start_ns, _ in stalls_ns]
    ends_ns += [end_ns for _, end_ns in stalls_ns]
    return max(ends_ns) - min(begins_ns) or None


def mark_stalled_elsewhere(tables: Sequence[Steps], processes: Sequence[ProcessSaves]) -> tuple[Steps, ...]:
    """Mark the steps in which a rank waited for a save of another one.

    A rank whose own save ended runs on to the next collective, maybe of the step after: a step is marked where another
    rank was stalled during it and this one was not, and where a save stalled the step of this number elsewhere.
    """
    offsets_ns = _host_offsets_ns(processes)
    own_ns = {(each.rank, each.attempt): _stalls_ns(each, offsets_ns[each.rank, each.attempt]) for each in processes}
    attempts = {table.attempt for table in tables}
    everyone = {
        attempt: _merge([edge for (_, other), edges in own_ns.items() if other == attempt for edge in edges])
        for attempt in attempts
    }
    numbers = {
        attempt: sorted({step for table in tables if table.attempt == attempt for step in _stalled_numbers(table)})
        for attempt in attempts
    }
    marked = []
    for table in tables:
        same_number = np.isin(table.step, numbers[table.attempt]) & ~present(table.save_ns)
        ends_ns = table.end_ns + offsets_ns.get((table.rank, table.attempt), 0)
        begins_ns = np.concatenate([[ends_ns[0] - np.ma.filled(table.wall_ns, 0)[0]], ends_ns[:-1]])
        own = _merge(own_ns.get((table.rank, table.attempt), []))
        waits_ns = _covered_ns(everyone[table.attempt], begins_ns, ends_ns) - _covered_ns(own, begins_ns, ends_ns)
        marked.append(replace(table, stalled_elsewhere=same_number | (waits_ns >= _SHORTEST_WAIT_NS)))
    return tuple(marked)


def _stalled_numbers(table: Steps) -> list[int]:
    numbers: list[int] = table.step[present(table.save_ns)].tolist()
    return numbers


def _stalls_ns(process: ProcessSaves, offset_ns: int) -> list[tuple[int, int]]:
    return [
        (start_ns + offset_ns, end_ns + offset_ns)
        for record in process.records
        for start_ns, end_ns in ((record.start_ns, record.end_ns), *(record.waits or ()))
    ]


def _merge(edges: Sequence[tuple[int, int]]) -> Int64:
    """Intervals as disjoint ones, ascending: one row each, with its start and its end."""
    merged: list[list[int]] = []
    for start, end in sorted(edges):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return np.asarray(merged, np.int64).reshape(-1, 2)


def _covered_ns(intervals: Int64, begins_ns: Int64, ends_ns: Int64) -> Int64:
    """How much of each step disjoint intervals cover."""
    covered = np.zeros(len(ends_ns), np.int64)
    for start, end in intervals:
        covered += np.maximum(0, np.minimum(ends_ns, end) - np.maximum(begins_ns, start))
    return covered
