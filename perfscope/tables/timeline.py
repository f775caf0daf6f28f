"""The life of one training process: when it began and ended, and what it did besides training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.tables.columns import Int64


@dataclass(frozen=True, slots=True, eq=False)
class ProcessSpans:
    """Stretches of a process's time on the host's monotonic clock, in the order in which they ended.

    ``kind`` is ``validation``, ``generation``, ``compilation``, ``garbage``, ``first_batch`` or ``save``; ``wait_ns``
    is how much was spent waiting for data loaders.
    """

    kind: npt.NDArray[np.str_]
    start_ns: Int64
    end_ns: Int64
    wait_ns: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One process of a rank that completed a step; times are on its host's monotonic clock, absent where unknown.

    Attributes:
        attempt: 0 for the rank's first process in the run, 1 after a restart.
        hooked_ns: When training first called a hook.
        ended_ns: When it was about to end by itself; absent where it was killed, or where that was not recorded.
        records_spans: Whether it recorded validation and the like at all.
        offset_ns: What its monotonic clock is behind the wall clock.
    """

    rank: int
    attempt: int
    host: str | None
    started_ns: int | None
    torch_loaded_ns: int | None
    hooked_ns: int | None
    ended_ns: int | None
    spans: ProcessSpans
    records_spans: bool
    offset_ns: int | None = None
