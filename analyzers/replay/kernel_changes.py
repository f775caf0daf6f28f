"""Changes of kernels: those of a name, of an operator, of a module, and those that recompute activations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.replay.changes import Changed, divide, parse_factor
from perfscope.analyzers.replay.contention import is_matrix_product
from perfscope.analyzers.replay.measured import Measured
from perfscope.analyzers.replay.rank_graph import MODULE, RankGraph
from perfscope.errors import MissingInput, UsageError
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Work

#: So many kernels in a row that ran in the forward pass in the same order are no accident,
_LENGTH = 5
#: if so many of them are different ones,
_FEWEST_DIFFERENT = 3
#: and if a whole part of so many matrix products is found so: what prepares gathered parameters repeats without any.
_FEWEST_PRODUCTS = 2


def find_recomputed(graph: RankGraph) -> Bool:
    """Which events of a rank repeat the forward pass of their step."""
    found = np.zeros(len(graph.name), np.bool_)
    if graph.main_thread == ABSENT:
        return found
    computes = (graph.launch != ABSENT) & (graph.work == Work.COMPUTE)
    kernel = graph.name.astype(np.int64)
    blocks = graph.blocks
    if len(blocks) == len(kernel):
        kernel = kernel * (int(blocks.max(initial=0)) + 2) + blocks + 1
    is_main = np.zeros(len(graph.name), np.bool_)
    is_main[computes] = graph.call_thread[graph.launch[computes]] == graph.main_thread
    is_product = np.array([is_matrix_product(name) for name in graph.names], np.bool_)
    for step in graph.marks:
        rows = np.flatnonzero(computes & (graph.step == step))
        rows = rows[np.argsort(graph.launch[rows], kind="stable")]
        backward = rows[~is_main[rows]]
        if not len(backward):
            continue
        forward = rows[is_main[rows] & (graph.launch[rows] < graph.launch[backward].max())]
        repeats = _repeats(kernel[forward], kernel[backward])
        found[backward[_with_products(repeats, is_product[graph.name[backward]])]] = True
    return found


def _with_products(repeats: Bool, is_product: Bool) -> Bool:
    """The repeated positions of parts without gaps that have enough matrix products."""
    part = np.cumsum(np.diff(repeats, prepend=False))
    products = np.bincount(part, weights=repeats & is_product)
    return np.asarray(repeats & (products[part] >= _FEWEST_PRODUCTS))


def _repeats(forward: Int64, backward: Int64) -> Bool:
    """Which positions of the second sequence lie in a part that occurs in the first one."""
    repeats = np.zeros(len(backward), np.bool_)
    if len(forward) < _LENGTH or len(backward) < _LENGTH:
        return repeats
    parts = {tuple(part) for part in _parts(forward).tolist() if len(set(part)) >= _FEWEST_DIFFERENT}
    matching = np.array([tuple(part) in parts for part in _parts(backward).tolist()], np.bool_)
    for distance in range(_LENGTH):
        repeats[distance : distance + len(matching)] |= matching
    return repeats


def _parts(sequence: Int64) -> Int64:
    return np.lib.stride_tricks.sliding_window_view(sequence, _LENGTH)


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
