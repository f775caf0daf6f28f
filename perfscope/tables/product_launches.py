"""Joins the products of a trace with the kernels that they launched.

Recording a graph runs nothing. What a launch of a graph runs is not told: its kernels belong to no call.
"""

from __future__ import annotations

import re

import numpy as np

from perfscope.tables.columns import Bool, Int64
from perfscope.tables.kernel_precision import product_precision
from perfscope.tables.products import ROUNDING_NS, Launches, ProductCalls, Products
from perfscope.tables.trace import ABSENT, GRAPH_LAUNCH, Trace, Work, distinct

_BEGINS = re.compile(r"^(?:cuda|cu|hip)StreamBeginCapture")
_ENDS = re.compile(r"^(?:cuda|cu|hip)StreamEndCapture")


def find_launches(trace: Trace, products: Products) -> Launches:
    """What the products launched."""
    if products.launches is not None:
        return products.launches
    calls, device = products.calls, trace.device
    is_multiplying = np.array([product_precision(name) is not None for name in trace.names], np.bool_)
    multiplies = is_multiplying[device.name]
    computes = device.is_work(Work.COMPUTE, Work.FUSED)
    launch = np.where(computes, trace.launch, ABSENT)
    graphs = trace.called(GRAPH_LAUNCH)
    is_replay = np.append(graphs, False)[launch]  # ABSENT is the last one
    launched = np.flatnonzero((launch != ABSENT) & ~is_replay)
    call = _innermost(calls, trace.calls.start_ns[launch[launched]], trace.calls.thread[launch[launched]])
    inside, call = launched[call != ABSENT], call[call != ABSENT]
    kernel_ns = _sum_by(call, device.duration_ns[inside], len(calls))
    multiplying_ns = _sum_by(call, np.where(multiplies[inside], device.duration_ns[inside], 0), len(calls))
    # A kernel without a launch was launched before the trace began, by a call that is not in it.
    in_all_ns = int(device.duration_ns[multiplies & computes & (launch != ABSENT)].sum())
    return Launches(
        kernel_ns=kernel_ns,
        multiplying_ns=multiplying_ns,
        is_recorded=_find_recorded(trace, calls),
        other_ns=in_all_ns - int(multiplying_ns.sum()),
        replays=int(graphs.sum()),
        replays_ns=int(device.duration_ns[multiplies & is_replay].sum()),
    )


def _find_recorded(trace: Trace, calls: ProductCalls) -> Bool:
    """The calls that threads recorded; of a graph that was begun before the trace only the end is known."""
    begins, ends = trace.called(_BEGINS), trace.called(_ENDS)
    of_trace = trace.calls
    is_recorded = np.zeros(len(calls), np.bool_)
    for thread in distinct(of_trace.thread[begins]):
        mine = of_trace.thread == thread
        stops_ns = of_trace.start_ns[ends & mine]
        for start_ns in of_trace.start_ns[begins & mine].tolist():
            later = stops_ns[stops_ns > start_ns]
            stop_ns = int(later[0]) if len(later) else int(of_trace.start_ns[-1]) + 1
            is_recorded |= (calls.thread == thread) & (calls.start_ns >= start_ns) & (calls.start_ns < stop_ns)
    return is_recorded


def _innermost(calls: ProductCalls, moments_ns: Int64, threads: Int64) -> Int64:
    """For each moment on a thread the innermost call there, or ABSENT."""
    innermost = np.full(len(moments_ns), ABSENT, np.int64)
    for thread in distinct(calls.thread):
        rows, mine = np.flatnonzero(calls.thread == thread), np.flatnonzero(threads == thread)
        if thread == ABSENT or not len(mine):
            continue
        last = np.searchsorted(calls.start_ns[rows], moments_ns[mine] + ROUNDING_NS, side="right") - 1
        row = np.where(last < 0, ABSENT, rows[np.maximum(last, 0)])
        is_past = (row != ABSENT) & (calls.end_ns[row] + ROUNDING_NS < moments_ns[mine])
        while is_past.any():
            row[is_past] = calls.parent[row[is_past]]
            is_past = (row != ABSENT) & (calls.end_ns[row] + ROUNDING_NS < moments_ns[mine])
        innermost[mine] = row
    return innermost


def _sum_by(rows: Int64, values_ns: Int64, length: int) -> Int64:
    totals = np.zeros(length, np.int64)
    np.add.at(totals, rows, values_ns)
    return totals
