"""The passes of micro-batches that the hooks timed, from a rank's ``micro_batches.jsonl``."""

from __future__ import annotations

from pathlib import Path

from perfscope import wire
from perfscope.sources.runs.records import decode_micro_batch, list_segments, read_records
from perfscope.tables.micro_batches import MicroBatches, PassTotal


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
                totals=tuple(PassTotal(*total) for total in record.totals),
                order=order,
            )
        )
    return tuple(passes)
