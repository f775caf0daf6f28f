"""Knows collectives on copy engines, as FSDP2 gathers with symmetric memory, by the annotations around their launches.

They have no kernel. Their copies are launched inside the annotation of the collective, as those are that a collective
makes besides its kernel.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, Trace, Work, distinct, span_at

_COLLECTIVE = re.compile(r"^(?:nccl2?|rccl|xccl):")
_ON_DEVICE = re.compile("DtoD")


def find_copied_collectives(trace: Trace) -> Trace:
    """A trace in which copies on the device communicate where a collective launched them, and no kernel."""
    copies, marks = trace.named(_ON_DEVICE), trace.named(_COLLECTIVE)
    if not copies.any() or not marks.any() or trace.world_size == 1:
        return trace
    device = trace.device
    is_copy = copies[device.name] & device.is_work(Work.COPY)
    rows = np.flatnonzero((is_copy | device.is_work(Work.COMMUNICATION, Work.FUSED)) & (trace.launch != ABSENT))
    mark = _mark_of(trace, trace.launch[rows], np.flatnonzero(marks[trace.annotations.name]))
    with_kernels = mark[~is_copy[rows]]
    communicates = is_copy[rows] & (mark != ABSENT) & ~np.isin(mark, with_kernels)
    if not communicates.any():
        return trace
    work = device.work.copy()
    work[rows[communicates]] = Work.COMMUNICATION
    return replace(trace, device=replace(device, work=work))


def _mark_of(trace: Trace, launch: Int64, marks: Int64) -> Int64:
    """For each launch which of some annotations of its own thread covers it, or ABSENT."""
    found = np.full(len(launch), ABSENT, np.int64)
    threads = trace.calls.thread[launch]
    for thread in distinct(threads):
        of_thread = marks[trace.annotations.thread[marks] == thread]
        mine = threads == thread
        span = span_at(trace.annotations.take(of_thread), trace.calls.start_ns[launch[mine]])
        found[mine] = np.append(of_thread, ABSENT)[span]
    return found
