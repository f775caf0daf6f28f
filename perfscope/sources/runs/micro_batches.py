"""The passes of micro-batches that the hooks timed, from a rank's ``micro_batches.jsonl``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from perfscope import wire
from perfscope.tables.micro_batches import MicroBatches, PassTotal


def read_micro_batches(folder: Path, rank: int, attempt: int, damage: list[str]) -> list[MicroBatches]:
    """Read every whole line; what cannot be read is added to ``damage``.

    A record that leaves the order out has that of the record before it.
    """
    path = folder / wire.MICRO_BATCHES_FILE
    if not path.is_file():
        return []
    found: list[MicroBatches] = []
    order: tuple[str, ...] = ()
    decoder = msgspec.json.Decoder(wire.MicroBatchRecord)
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            record = decoder.decode(line)
        except msgspec.MsgspecError:
            damage.append(f"{folder.name}/{path.name}: line {number} cannot be read")
            continue
        order = record.order or order
        found.append(
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
    return found
