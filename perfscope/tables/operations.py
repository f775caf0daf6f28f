"""The operations of a whole training job: what each worker computed and transferred in each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.tables.columns import Int64


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """One row an operation, times in nanoseconds.

    Attributes:
        kinds: Names of the types of operations.
        kind: Index of the row's type in ``kinds``.
        step: The training step.
        rank: The worker, ``pipeline`` its data-parallel rank and ``stage`` its place in the pipeline.
        start_ns, duration_ns: When it ran.
        sequence: Which operation of its type in this step on this worker, from 0 in the order of starts.
        chunk: The model chunk of the stage, and ``global_chunk`` that of the model; -1 where it has none.
    """

    kinds: tuple[str, ...]
    kind: Int64
    step: Int64
    rank: Int64
    pipeline: Int64
    stage: Int64
    start_ns: Int64
    duration_ns: Int64
    sequence: Int64
    chunk: Int64
    global_chunk: Int64

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def end_ns(self) -> Int64:
        """When each operation ended."""
        return np.asarray(self.start_ns + self.duration_ns, np.int64)
