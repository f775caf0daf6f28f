"""Changes of kernels: those of a name, of an operator, of a module, and those that recompute activations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.replay.changes import Changed, divide, parse_factor
from perfscope.analyzers.replay.measured import Measured
from perfscope.analyzers.replay.repeated_forwards import find_recomputed
from perfscope.analyzers.replay.stacks import MODULE
from perfscope.errors import MissingInput, UsageError
from perfscope.tables.columns import Bool
from perfscope.tables.trace import ABSENT, Work

_SAME_HOST = "The host launches as many kernels as before, in the same time."


def speed_up_kernels(measured: Measured, value: str) -> Changed:
    """Kernels whose name holds a text are x times faster."""
    text, _, factor = value.rpartition(":")
    times_faster = parse_factor("faster-kernel", factor)
    is_named = [np.array([text.lower() in name.lower() for name in graph.names]) for graph in measured.job.ranks]
    chosen = [named[graph.name] for named, graph in zip(is_named, measured.job.ranks, strict=True)]
    if not text or not any(rows.any() for rows in chosen):
        raise UsageError(f"faster-kernel={value} names no kernel of the traces", hint="faster-kernel=gemm:1.5")
    return _speed_up(measured, chosen, times_faster)


def speed_up_operators(measured: Measured, value: str) -> Changed:
    """What operators whose name holds a text launch, in both passes, is x times faster."""
    text, _, factor = value.rpartition(":")
    times_faster = parse_factor("faster-operator", factor)
    chosen = _launched_inside(
        measured, lambda name: not name.startswith(MODULE) and bool(text) and text.lower() in name.lower()
    )
    if not any(rows.any() for rows in chosen):
        raise UsageError(
            f"faster-operator={value} names no operator that launched anything", hint="faster-operator=layer_norm:2"
        )
    return _speed_up(measured, chosen, times_faster)


def speed_up_modules(measured: Measured, value: str) -> Changed:
    """What modules of a path launch, in both passes, is x times faster."""
    path, _, factor = value.rpartition(":")
    times_faster = parse_factor("faster-module", factor)
    pattern = re.compile(rf"{re.escape(MODULE)}(?:.*\.)?{re.escape(path)}")
    chosen = _launched_inside(measured, lambda name: bool(path) and pattern.fullmatch(name) is not None)
    if not any(name.startswith(MODULE) for graph in measured.job.ranks for stack in graph.stacks for name in stack):
        raise MissingInput("the traces name no modules: profile with `--modules`")
    if not any(rows.any() for rows in chosen):
        raise UsageError(f"faster-module={value} names no module that launched anything", hint="faster-module=mlp:2")
    return _speed_up(measured, chosen, times_faster)


def drop_recomputation(measured: Measured, _value: str) -> Changed:
    """Nothing of the forward pass is computed again in the backward pass."""
    recomputed = [find_recomputed(graph) for graph in measured.job.ranks]
    if not any(rows.any() for rows in recomputed):
        raise MissingInput("nothing was recomputed: no kernels of the forward pass run again in the backward pass")
    ranks = []
    for graph, times, rows in zip(measured.job.ranks, measured.times.ranks, recomputed, strict=True):
        calls = np.zeros(len(times.gap_ns), np.bool_)
        calls[graph.launch[rows]] = True
        ranks.append(
            replace(
                times,
                event_ns=np.where(rows, 0, times.event_ns),
                lag_ns=np.where(rows, 0, times.lag_ns),
                gap_ns=np.where(calls, np.minimum(times.gap_ns, 0), times.gap_ns),
                call_ns=np.where(calls, 0, times.call_ns),
            )
        )
    return Changed(measured.times.with_ranks(ranks), ("All activations fit into the memory of the device.",))


def _launched_inside(measured: Measured, is_meant: Callable[[str], bool]) -> list[Bool]:
    """For each rank the computing events that were launched inside a range that is meant."""
    chosen = []
    for graph in measured.job.ranks:
        if not len(graph.stack):
            raise MissingInput("the traces have no operators")
        inside = np.array([any(is_meant(name) for name in stack) for stack in graph.stacks] or [False], np.bool_)
        chosen.append(inside[graph.stack] & (graph.stack != ABSENT) & (graph.work != Work.COMMUNICATION))
    return chosen


def _speed_up(measured: Measured, chosen: Sequence[Bool], times_faster: float) -> Changed:
    ranks = [
        replace(times, event_ns=np.where(rows, divide(times.event_ns, times_faster), times.event_ns))
        for times, rows in zip(measured.times.ranks, chosen, strict=True)
    ]
    return Changed(measured.times.with_ranks(ranks), (_SAME_HOST,))
