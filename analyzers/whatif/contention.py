"""How much concurrent communication slows kernels of computation.

A kernel is compared with kernels of the same name between the same neighbours on its stream, which do the same work in
another layer. Only those without concurrent communication count. *Contention* is the kernel's excess time over the time
that it shared with communication: 0.4 means that a shared millisecond costs 0.4 ms. Kernels that never run alone are
corrected by the contention of their class.

That communication slows overlapped computation by 19 % on average and by 40 % at most is measured in arXiv 2507.03114.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from perfscope.analyzers.shared.intervals import union
from perfscope.analyzers.whatif.rank_graph import RankGraph
from perfscope.constants import NS_PER_US
from perfscope.result import Doc, Figures, InUnit
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Work

_NEIGHBOURS = 2
_FEWEST_ALONE = 2
_ALONE = 0.02
_OVERLAPPED = 0.1
_LARGEST_SPREAD = 1.15
_PRODUCT = re.compile(r"gemm|nvjet|cutlass|wgmma|xmma|Cijk_|wgrad|dgrad|implicit_convolve", re.IGNORECASE)
MATRIX_PRODUCTS, OTHER_KERNELS = "matrix products", "other kernels"


def is_matrix_product(kernel: str) -> bool:
    """Whether a kernel multiplies matrices, by its name."""
    return _PRODUCT.search(kernel) is not None


class Contention(Figures, frozen=True):
    """What communication costs one class of kernels beside it.

    Attributes:
        overlapped_ns: Time that kernels of the class ran beside communication, on all ranks.
    """

    kernels: Annotated[str, Doc("The class of kernels.")]
    slowdown: Annotated[
        float | None,
        Doc("Time lost in each unit of time beside communication; None where no kernel could be compared."),
    ]
    compared: Annotated[int, Doc("How many overlapped kernels it rests on.")]
    overlapped_ns: int
    overlapped_us = InUnit("overlapped_ns", NS_PER_US, "Time that they ran beside communication, on all ranks.")


class _Sharing(Struct, frozen=True, eq=False):
    """A rank's kernels of marked steps: what they share with communication, and how long they take alone."""

    rows: Int64
    duration_ns: Int64
    is_product: Bool
    shared_ns: Int64
    alone_ns: Int64

    def of_class(self, kernels: str) -> Bool:
        """Which of them are of a class."""
        return np.asarray(self.is_product == (kernels == MATRIX_PRODUCTS))


def measure_contention(ranks: Sequence[RankGraph]) -> tuple[Contention, ...]:
    """The contention of each class of kernels, over all ranks."""
    sharings = [_compare_with_themselves(graph) for graph in ranks]
    return tuple(_pool(sharings, name) for name in (MATRIX_PRODUCTS, OTHER_KERNELS))


def without_contention(graph: RankGraph, contention: Sequence[Contention], removed: Bool) -> Int64:
    """For each event of a rank how long it would run without some of the communication beside it."""
    sharing = _compare_with_themselves(graph)
    rows, own_ns = sharing.rows, sharing.duration_ns
    slowdown = np.zeros(len(rows))
    for item in contention:
        slowdown[sharing.of_class(item.kernels)] = item.slowdown or 0.0
    share = sharing.shared_ns / np.maximum(own_ns, 1)
    estimated_ns = np.rint(own_ns / (1 + slowdown * share)).astype(np.int64)
    alone_ns = np.where(sharing.alone_ns != ABSENT, np.minimum(sharing.alone_ns, own_ns), estimated_ns)
    removed_spans = union(graph.start_ns[removed], graph.end_ns[removed])
    removed_ns = removed_spans.measure_within(graph.start_ns[rows], graph.end_ns[rows])
    lost_ns = (own_ns - alone_ns) * (removed_ns / np.maximum(sharing.shared_ns, 1))
    duration_ns = graph.duration_ns.copy()
    duration_ns[rows] -= np.where(share >= _ALONE, np.rint(lost_ns), 0).astype(np.int64)
    return duration_ns


def _compare_with_themselves(graph: RankGraph) -> _Sharing:
    """For each kernel of a marked step the time beside communication, and its duration alone or ABSENT."""
    rows = np.flatnonzero((graph.work == Work.COMPUTE) & (graph.step != ABSENT))
    communicating = union(graph.start_ns[graph.is_communication], graph.end_ns[graph.is_communication])
    shared_ns = communicating.measure_within(graph.start_ns[rows], graph.end_ns[rows])
    duration_ns = graph.duration_ns[rows]
    is_alone = shared_ns / np.maximum(duration_ns, 1) < _ALONE
    alone_ns = np.full(len(rows), ABSENT, np.int64)
    group = _same_neighbours(graph, rows) if shared_ns.any() else rows[:0]
    order = np.argsort(group, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        alone = duration_ns[members[is_alone[members]]]
        if len(alone) < _FEWEST_ALONE or len(alone) == len(members):
            continue
        low, middle, high = np.quantile(alone, (0.25, 0.5, 0.75))
        if high <= _LARGEST_SPREAD * low:
            alone_ns[members] = int(middle)
    is_product = np.array([is_matrix_product(name) for name in graph.names], np.bool_)
    return _Sharing(rows, duration_ns, is_product[graph.name[rows]], shared_ns, alone_ns)


def _same_neighbours(graph: RankGraph, rows: Int64) -> Int64:
    """A number for each kernel, the same where its name and those of its neighbours on its stream are."""
    columns = []
    for distance in range(-_NEIGHBOURS, _NEIGHBOURS + 1):
        neighbour = np.clip(rows + distance, 0, len(graph.name) - 1)
        is_there = (rows + distance == neighbour) & (graph.stream[neighbour] == graph.stream[rows])
        columns.append(np.where(is_there, graph.name[neighbour], ABSENT))
    together: Int64 = np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)
    return together


def _pool(sharings: Sequence[_Sharing], kernels: str) -> Contention:
    lost_ns = shared_alone_ns = 0.0
    compared = overlapped_ns = 0
    for sharing in sharings:
        is_class, duration_ns, alone_ns = sharing.of_class(kernels), sharing.duration_ns, sharing.alone_ns
        overlapped_ns += int(sharing.shared_ns[is_class].sum())
        share = sharing.shared_ns / np.maximum(duration_ns, 1)
        used = is_class & (alone_ns != ABSENT) & (share >= _OVERLAPPED)
        lost_ns += float((duration_ns[used] - alone_ns[used]).sum())
        shared_alone_ns += float((alone_ns[used] * share[used]).sum())
        compared += int(used.sum())
    slowdown = max(0.0, lost_ns / shared_alone_ns) if shared_alone_ns else None
    return Contention(kernels, slowdown, compared, overlapped_ns)
