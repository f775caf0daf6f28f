"""One iteration record, as a framework's reader makes it of a line."""

from __future__ import annotations

from dataclasses import dataclass

#: No count and no time in nanoseconds is larger (two weeks): damaged digits can say anything.
LARGEST_INTEGER = 1 << 50


@dataclass(slots=True)
class Record:
    """One iteration record. Absent values are None; see ``perfscope.tables.joblog.Iterations`` for their meaning.

    ``moment`` is its number among the records that a ``MomentsBuilder`` marked.
    """

    iteration: int | None = None
    wall_ns: int | None = None
    samples: int | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    loss: float | None = None
    loss_scale: float | None = None
    skipped: int = 0
    nan: int = 0
    wall_resolution_ns: int | None = None
    tflops_resolution: float | None = None
    moment: int | None = None

    def drop_impossible(self) -> None:
        """Take what no record can have; the number is left."""
        if self.wall_ns is not None and not 0 < self.wall_ns <= LARGEST_INTEGER:
            self.wall_ns = None
        if self.samples is not None and not 0 < self.samples <= LARGEST_INTEGER:
            self.samples = None
        if not 0 <= self.skipped <= LARGEST_INTEGER:
            self.skipped = 0
        if not 0 <= self.nan <= LARGEST_INTEGER:
            self.nan = 0
