"""The checkpoint saves of all ranks on one clock, and the life of each process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfscope import wire
from perfscope.constants import NS_PER_S
from perfscope.sources.runs.records import decode_checkpoint, read_rank_record, read_records
from perfscope.tables.columns import present
from perfscope.tables.saves import Saves, SaveTiming
from perfscope.tables.steps import Steps
from perfscope.tables.timeline import ProcessSpans, Timeline
from perfscope.wire.records import CheckpointRecord, EndRecord, RankRecord, Span

SAVE = "save"


@dataclass(frozen=True, slots=True)
class ProcessSaves:
    """The saves of one process of a rank, in order; its monotonic clock is ``offset_ns`` behind the wall clock."""

    rank: int
    attempt: int
    host: str | None
    offset_ns: int
    records: tuple[CheckpointRecord, ...]


def read_process_saves(folder: Path, rank: int, attempt: int, damage: list[str]) -> ProcessSaves:
    """``damage`` gets a text for each line that cannot be read."""
    records = tuple(read_records(folder / wire.CHECKPOINTS_FILE, decode_checkpoint, damage))
    identity = read_rank_record(folder)
    if identity is None:
        return ProcessSaves(rank, attempt, None, 0, records)
    return ProcessSaves(rank, attempt, identity.host, identity.wall_ns - identity.monotonic_ns, records)


def to_saves(processes: Sequence[ProcessSaves], steps: Iterable[Steps]) -> Saves | None:
    """The saves of all processes on one clock; None where there is none."""
    if not any(process.records for process in processes):
        return None
    offsets_ns = host_offsets_ns(processes)
    timings = tuple(
        _to_timing(number, process, record, offsets_ns[process.rank, process.attempt])
        for process in processes
        for number, record in enumerate(process.records)
    )
    ranks = tuple(sorted({process.rank for process in processes}))
    return Saves(timings, _training_ns(timings, steps, offsets_ns), ranks)


def host_offsets_ns(processes: Sequence[ProcessSaves | Timeline]) -> dict[tuple[int, int], int]:
    """The offset of each process's clock: processes of one host have one monotonic clock, until it starts again."""
    first_ns: dict[str | None, int] = {}
    offsets_ns: dict[tuple[int, int], int] = {}
    for process in processes:
        offset_ns = process.offset_ns or 0
        shared_ns = first_ns.setdefault(process.host, offset_ns)
        is_shared = process.host is not None and abs(offset_ns - shared_ns) < NS_PER_S
        offsets_ns[process.rank, process.attempt] = shared_ns if is_shared else offset_ns
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


def to_timeline(
    number: tuple[int, int],
    record: RankRecord | None,
    step_spans: Iterable[Span],
    events: Sequence[object],
    saves: Sequence[CheckpointRecord],
) -> Timeline:
    """Put together what one process of a rank recorded; ``number`` is the rank, and which of its processes it is."""
    end = next((event for event in reversed(events) if isinstance(event, EndRecord)), None)
    spans = list(step_spans)
    spans += end.spans or () if end is not None else ()
    for save in saves:
        stalls = ((save.start_ns, save.end_ns), *(save.waits or ()))
        spans += [Span(SAVE, start_ns, end_ns) for start_ns, end_ns in stalls]
    return Timeline(
        rank=number[0],
        attempt=number[1],
        host=None if record is None else record.host,
        started_ns=None if record is None else record.started_ns,
        torch_loaded_ns=None if record is None else record.torch_loaded_ns,
        hooked_ns=None if record is None else record.hooked_ns,
        ended_ns=None if end is None else end.end_ns,
        spans=_to_spans(spans),
        records_spans=record is not None and record.hooked_ns is not None,
        offset_ns=None if record is None else record.wall_ns - record.monotonic_ns,
    )


def _to_spans(spans: Sequence[Span]) -> ProcessSpans:
    return ProcessSpans(
        kind=np.asarray([span.kind for span in spans], np.str_),
        start_ns=np.asarray([span.start_ns for span in spans], np.int64),
        end_ns=np.asarray([span.end_ns for span in spans], np.int64),
        wait_ns=np.asarray([span.wait_ns for span in spans], np.int64),
    )
