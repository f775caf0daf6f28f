"""One iteration record, as a framework's reader makes it of a line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Record:
    """One iteration record. Absent values are None; see ``perfscope.tables.joblog.Iterations`` for their meaning."""

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
