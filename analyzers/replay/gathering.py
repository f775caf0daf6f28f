"""The host's time in which a backward pass gathers sharded parameters.

FSDP2 marks it with ranges of its own. DeepSpeed's ZeRO-3 gathers in a node of autograd ahead of each module, which the
profiler records as an operator; nodes ahead of modules whose parameters are there already say what it takes without.
"""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.shared.intervals import Intervals, union
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import HostSpans, Trace

#: The ranges of FSDP2 in which it gathers parameters, and copies them out.
_FSDP = "FSDP::all_gather"
#: The nodes of DeepSpeed that run ahead of a module's backward pass.
_DEEPSPEED, _NODE = "PreBackwardFunction", "Backward"
_TRANSFERS, _GATHER = ("nccl:", "nccl2:"), "gather"


def find_gathering(trace: Trace, calls: Int64) -> tuple[Int64, Bool]:
    """For each call the host's time before it, and whether it was made, to gather parameters in the backward pass.

    Args:
        trace: With its operators, where ZeRO-3's gathering is to be known as well.
        calls: Rows of ``trace.calls`` in program order.
    """
    main = trace.steps.thread[:1]
    is_range = np.array([name.startswith(_FSDP) for name in trace.names], np.bool_)
    ranges = trace.annotations.take(is_range[trace.annotations.name] & ~np.isin(trace.annotations.thread, main))
    gathering = union(ranges.start_ns, ranges.end_ns)
    if len(trace.operators):
        gathering |= _in_nodes(trace)
    start_ns, end_ns = trace.calls.start_ns[calls], trace.calls.end_ns[calls]
    before_ns = np.minimum(np.concatenate([start_ns[:1], end_ns[:-1]]), start_ns)
    return gathering.measure_within(before_ns, start_ns), gathering.measure_within(start_ns, end_ns) > 0


def _in_nodes(trace: Trace) -> Intervals:
    """When DeepSpeed's nodes gathered: those with a gather, less what they take without one."""
    is_node = np.array([name.startswith(_DEEPSPEED) and name.endswith(_NODE) for name in trace.names], np.bool_)
    nodes = trace.operators.take(is_node[trace.operators.name])
    gathers = _gathers(trace)
    begun = np.searchsorted(gathers.start_ns, np.stack([nodes.start_ns, nodes.end_ns]))
    has_gather = begun[0] < begun[1]
    duration_ns = nodes.end_ns - nodes.start_ns
    usual_ns = int(np.median(duration_ns[~has_gather])) if (~has_gather).any() else 0
    ends_ns = np.maximum(nodes.end_ns - usual_ns, nodes.start_ns)[has_gather]
    return union(nodes.start_ns[has_gather], ends_ns)


def _gathers(trace: Trace) -> HostSpans:
    """The ranges in which PyTorch hands a gather to NCCL, in the order of their start."""
    is_gather = np.array([name.startswith(_TRANSFERS) and _GATHER in name for name in trace.names], np.bool_)
    return trace.annotations.take(is_gather[trace.annotations.name])
