"""The life of one process, from its records of steps, events and saves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from perfscope.tables.timeline import ProcessSpans, Timeline
from perfscope.wire.records import CheckpointRecord, EndRecord, RankRecord, Span

SAVE = "save"


def to_timeline(
    number: tuple[int, int],
    record: RankRecord | None,
    step_spans: Iterable[Span],
    events: Sequence[object],
    saves: Sequence[CheckpointRecord],
) -> Timeline:
    """Put together what one process of a rank recorded.

    Args:
        number: The rank, and which of its processes it is.
        record: Who the rank is; None where that cannot be read.
        step_spans: What happened besides training in its completed steps.
        events: Its windows, its notes and its end.
        saves: Its checkpoint saves.
    """
    end = next((event for event in reversed(events) if isinstance(event, EndRecord)), None)
    spans = list(step_spans)
    spans += end.spans or () if end is not None else ()
    for save in saves:
        stalls = ((save.start_ns, save.end_ns), *(save.waits or ()))
        spans += [Span(SAVE, start_ns, end_ns) for start_ns, end_ns in stalls]
    return Timeline(
        rank=number[0],
        attempt=number[1],
        host=None if record is None else record.host,
        started_ns=None if record is None else record.started_ns,
        torch_loaded_ns=None if record is None else record.torch_loaded_ns,
        hooked_ns=None if record is None else record.hooked_ns,
        ended_ns=None if end is None else end.end_ns,
        spans=_to_spans(spans),
        records_spans=record is not None and record.hooked_ns is not None,
        offset_ns=None if record is None else record.wall_ns - record.monotonic_ns,
    )


def _to_spans(spans: Sequence[Span]) -> ProcessSpans:
    return ProcessSpans(
        kind=np.asarray([span.kind for span in spans], np.str_),
        start_ns=np.asarray([span.start_ns for span in spans], np.int64),
        end_ns=np.asarray([span.end_ns for span in spans], np.int64),
        wait_ns=np.asarray([span.wait_ns for span in spans], np.int64),
    )
