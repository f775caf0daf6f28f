"""Changes of kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfscope.analyzers.replay.changes import Changed, divide, parse_factor
from perfscope.analyzers.replay.measured import Measured
from perfscope.errors import UsageError


def speed_up_kernels(measured: Measured, value: str) -> Changed:
    """Kernels whose name holds a text are x times faster."""
    text, _, factor = value.rpartition(":")
    times_faster = parse_factor("faster-kernel", factor)
    is_named = [np.array([text.lower() in name.lower() for name in graph.names]) for graph in measured.job.ranks]
    chosen = [named[graph.name] for named, graph in zip(is_named, measured.job.ranks, strict=True)]
    if not text or not any(rows.any() for rows in chosen):
        raise UsageError(f"faster-kernel={value} names no kernel of the traces", hint="faster-kernel=gemm:1.5")
    ranks = [
        replace(times, event_ns=np.where(rows, divide(times.event_ns, times_faster), times.event_ns))
        for times, rows in zip(measured.times.ranks, chosen, strict=True)
    ]
    return Changed(measured.times.with_ranks(ranks), ())
