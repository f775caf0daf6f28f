"""Step times from the dates in front of lines, for logs that print no time of their own."""

from __future__ import annotations

from perfscope.sources.joblog.draft import Draft, Hit, label_of
from perfscope.sources.joblog.series import Record


def add_stamped(draft: Draft, source: str, hit: Hit, record: Record, stamp_ns: int | None = None) -> bool:
    """Append a record with the time since the record before it, divided by the iterations between them.

    The first record, and the first after a restart, has no time. The clock runs on through evaluations and saves.
    """
    series = draft.of(source)
    series.clock_runs_on = True
    stamp = stamp_ns if stamp_ns is not None else hit.timestamp_ns
    known = draft.scratch.get(source)
    attempt = series.attempt
    if isinstance(known, tuple) and stamp is not None and record.iteration is not None:
        before, before_ns, in_attempt = known
        if record.iteration > before and stamp > before_ns and in_attempt == attempt and series.is_continuing:
            record.wall_ns = (stamp - before_ns) // (record.iteration - before)
    added = series.add(record, label_of(hit.text, hit.line))
    if added and stamp is not None and record.iteration is not None:
        draft.scratch[source] = (record.iteration, stamp, series.attempt)
    return added
