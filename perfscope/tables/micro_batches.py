"""The passes of micro-batches through a pipeline, as the hooks timed them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

#: The fastest of fewer passes says little.
_FEWEST_PASSES = 3


@dataclass(frozen=True, slots=True)
class PassTotal:
    """All passes of one kind on one virtual stage in a step.

    Attributes:
        kind, stage, count: What they are, and how many.
        time_ns: Their time, and ``fastest_ns`` the shortest one's.
        launch_ns: How long the host took to launch them; None where that is unknown.
        wait_ns: For how long of their time the device may have waited for that, at most.
    """

    kind: str
    stage: int
    count: int
    time_ns: int
    fastest_ns: int | None = None
    launch_ns: int | None = None
    wait_ns: int | None = None


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """The passes of micro-batches of one training step on one rank: see ``perfscope.wire.passes.MicroBatchRecord``.

    Attributes:
        rank, attempt, step: The rank, its process and the training step.
        device: The rank's position in the pipeline, and ``devices`` its length.
        stages: Virtual stages of the model.
        span_ns: From the beginning of the first pass to the end of the last one.
        totals: By kind and virtual stage.
        order: Each pass as ``F3.1``: kind, micro-batch, virtual stage.
    """

    rank: int
    attempt: int
    step: int
    device: int
    devices: int
    stages: int
    span_ns: int
    totals: tuple[PassTotal, ...]
    order: tuple[str, ...]

    def of_kinds(self, kinds: str) -> MicroBatches:
        """The passes of some kinds alone, in ``totals``."""
        return replace(self, totals=tuple(total for total in self.totals if total.kind in kinds))

    @property
    def busy_ns(self) -> int:
        """Time of all passes."""
        return sum(total.time_ns for total in self.totals)

    @property
    def worked_ns(self) -> int | None:
        """For how long of that the device worked, at least; None where its waits for launches are unknown."""
        waits_ns = [total.wait_ns for total in self.totals if total.wait_ns is not None]
        return self.busy_ns - sum(waits_ns) if len(waits_ns) == len(self.totals) else None

    @property
    def launch_ns(self) -> int | None:
        """How long the host took to launch all passes; None where that is unknown."""
        launches_ns = [total.launch_ns for total in self.totals if total.launch_ns is not None]
        return sum(launches_ns) if len(launches_ns) == len(self.totals) else None

    @property
    def wait_share(self) -> float | None:
        """The share for which the device may have waited for launches, of the kind of passes where it is largest."""
        shares = [total.wait_ns / max(total.time_ns, 1) for total in self.totals if total.wait_ns is not None]
        return max(shares) if shares and len(shares) == len(self.totals) else None

    @property
    def alone_ns(self) -> int | None:
        """What all passes would take if each were the fastest of its kind; None where unknown."""
        alone_ns = 0
        for total in self.totals:
            if not total.fastest_ns or total.count < _FEWEST_PASSES:
                return None
            alone_ns += total.count * total.fastest_ns
        return alone_ns or None


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
