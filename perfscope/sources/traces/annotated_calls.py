"""Names communication that states no metadata by the annotation around its launch.

Older profilers state nothing of a collective. Its kernel's name tells the operation, but for exchanges: NCCL sends and
receives them with the same kernel as the transfers of a pipeline. PyTorch's annotation around the launch tells them
apart: ``nccl:all_to_all``, where a transfer has ``nccl:send``, ``nccl:recv`` or ``nccl:coalesced``.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, Collective, Trace, Work, distinct, span_at

_TRANSFERS = re.compile(r"send_?recv", re.IGNORECASE)
_EXCHANGE = re.compile(r"(?:nccl2?|rccl):all_?to_?all", re.IGNORECASE)
_NAMED = Collective(operation="all_to_all", group="", group_size=None, dtype="", in_elements=None, out_elements=None,
                    sequence=None, peer=None)  # fmt: skip


def name_exchanges(trace: Trace) -> Trace:
    """A trace in which exchanges without metadata are called so."""
    names = np.array([bool(_TRANSFERS.search(name)) for name in trace.names], np.bool_)
    marks = np.array([bool(_EXCHANGE.match(name)) for name in trace.names], np.bool_)
    if not names.any() or not marks.any():
        return trace
    device = trace.device
    rows = np.flatnonzero(names[device.name] & (device.collective == ABSENT) & device.is_work(Work.COMMUNICATION))
    launch = trace.launch[rows]
    rows, launch = rows[launch != ABSENT], launch[launch != ABSENT]
    inside = _launched_inside(trace, launch, np.flatnonzero(marks[trace.annotations.name]))
    if not inside.any():
        return trace
    collective = device.collective.copy()
    collective[rows[inside]] = len(trace.collectives)
    return replace(trace, device=replace(device, collective=collective), collectives=(*trace.collectives, _NAMED))


def _launched_inside(trace: Trace, launch: Int64, marks: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which launches lie in one of some annotations of their own thread."""
    inside = np.zeros(len(launch), np.bool_)
    threads = trace.calls.thread[launch]
    for thread in distinct(threads):
        spans = trace.annotations.take(marks[trace.annotations.thread[marks] == thread])
        mine = threads == thread
        inside[mine] = span_at(spans, trace.calls.start_ns[launch[mine]]) != ABSENT
    return inside
