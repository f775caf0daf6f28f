"""The passes of micro-batches through a pipeline, as the hooks timed them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassTotal:
    """All passes of one kind on one virtual stage in a step."""

    kind: str
    stage: int
    count: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """The passes of micro-batches of one training step on one rank: see ``perfscope.wire.passes.MicroBatchRecord``."""

    rank: int
    attempt: int
    step: int
    device: int
    devices: int
    stages: int
    span_ns: int
    totals: tuple[PassTotal, ...]
    order: tuple[str, ...]

    @property
    def busy_ns(self) -> int:
        """Time of all passes."""
        return sum(total.time_ns for total in self.totals)


def of_last_attempts(records: Sequence[MicroBatches]) -> dict[int, dict[int, MicroBatches]]:
    """The records of each rank's last process, by rank and step; a launcher may have started a rank anew."""
    attempts: dict[int, int] = {}
    for record in records:
        attempts[record.rank] = max(attempts.get(record.rank, 0), record.attempt)
    by_rank: dict[int, dict[int, MicroBatches]] = defaultdict(dict)
    for record in records:
        if record.attempt == attempts[record.rank]:
            by_rank[record.rank][record.step] = record
    return dict(sorted(by_rank.items()))
