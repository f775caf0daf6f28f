"""Which events compute a part of the forward pass again: what activation checkpointing recomputes.

They are launched by the thread of the backward pass, and their kernels follow each other as in the forward pass.
"""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.replay.contention import is_matrix_product
from perfscope.analyzers.replay.rank_graph import RankGraph
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
