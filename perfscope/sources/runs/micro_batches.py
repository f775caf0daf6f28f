"""The passes of micro-batches that the hooks timed, from a rank's ``micro_batches.jsonl``."""

from __future__ import annotations

from pathlib import Path

from perfscope import wire
from perfscope.sources.runs.records import decode_micro_batch, list_segments, read_records
from perfscope.tables.micro_batches import MicroBatches, PassTotal
from perfscope.wire.passes import MicroBatchRecord


def read_micro_batches(folder: Path, rank: int, attempt: int, damage: list[str]) -> tuple[MicroBatches, ...]:
    """Read every record; what cannot be read is added to ``damage``.

    A record that leaves the order out has that of the record before it.
    """
    passes: list[MicroBatches] = []
    order: tuple[str, ...] = ()
    segments = list_segments(folder, wire.MICRO_BATCHES_FILE)
    for record in (record for path in segments for record in read_records(path, decode_micro_batch, damage)):
        order = record.order or order
        passes.append(
            MicroBatches(
                rank=rank,
                attempt=attempt,
                step=record.step,
                device=record.device,
                devices=record.devices,
                stages=record.stages,
                span_ns=record.span_ns,
                totals=_totals(record),
                order=order,
            )
        )
    return tuple(passes)


def _totals(record: MicroBatchRecord) -> tuple[PassTotal, ...]:
    values = (record.fastest_ns, record.launches_ns, record.waits_ns)
    columns = [_column(numbers, len(record.totals)) for numbers in values]
    return tuple(
        PassTotal(kind, stage, count, time_ns, fastest_ns, launch_ns, wait_ns)
        for (kind, stage, count, time_ns), fastest_ns, launch_ns, wait_ns in zip(record.totals, *columns, strict=True)
    )


def _column(numbers: tuple[int, ...] | None, count: int) -> tuple[int | None, ...]:
    """One for each of the totals; none in a record of before it was recorded."""
    return numbers if numbers is not None and len(numbers) == count else (None,) * count
