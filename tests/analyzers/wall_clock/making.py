"""Steps and lives of processes that are made up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.sources.runs.step_records import to_steps
from perfscope.sources.runs.timeline import to_timeline
from perfscope.tables.steps import Steps
from perfscope.tables.timeline import Timeline
from perfscope.wire.records import CheckpointRecord, EndRecord, RankRecord, Span, StepRecord


def step_record(number: int, begin: int, end: int, **fields: object) -> StepRecord:
    """A step from a moment to another one; what saves and validation took is not in ``wall_ns``."""
    off = sum(int(str(fields.get(name) or 0)) for name in ("save_ns", "no_grad_ns"))
    known: dict[str, object] = {"wall_ns": end - begin - off, **fields}
    return StepRecord(number, end, "optimizer", **known)  # type: ignore[arg-type]


def life(
    records: Sequence[StepRecord],
    *,
    started: int | None = 0,
    torch_loaded: int | None = None,
    hooked: int | None = None,
    ended: int | None = None,
    spans: Sequence[tuple[str, int, int, int]] = (),
    saves: Sequence[tuple[int, int]] = (),
) -> tuple[Timeline, Steps]:
    """A process of rank 0 with these steps; spans of kind, start, end and wait end with the process."""
    rank = RankRecord(0, 1, "host", 1, 0, 0, "3.11", started_ns=started, torch_loaded_ns=torch_loaded, hooked_ns=hooked)
    last = max([records[-1].end_ns, *(end for _, _, end, _ in spans)])
    events = [EndRecord(last if ended is None else ended, tuple(Span(*span) for span in spans))]
    checkpoints = [CheckpointRecord(start, end, "torch.save") for start, end in saves]
    timeline = to_timeline(
        (0, 0), rank, [span for record in records for span in record.spans or ()], events, checkpoints
    )
    return timeline, to_steps(0, 0, records)


def is_whole(parts: dict[str, int], wall_ns: int) -> bool:
    """Whether parts are whole numbers that add up to the wall time."""
    return sum(parts.values()) == wall_ns and all(isinstance(value, (int, np.integer)) for value in parts.values())
