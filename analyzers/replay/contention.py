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

import numpy as np
from msgspec import Struct

from perfscope.analyzers.replay.rank_graph import MANY_BLOCKS, RankGraph, slowdown_beside
from perfscope.analyzers.shared.intervals import union
from perfscope.constants import NS_PER_US
from perfscope.tables.columns import Bool, Float64, Int64
from perfscope.tables.trace import ABSENT, Work

_NEIGHBOURS = 2
_FEWEST_ALONE = 2
_ALONE = 0.02
_OVERLAPPED = 0.1
_LARGEST_SPREAD = 1.15
_MOST_NUMBERS = np.iinfo(np.int64).max
_PRODUCT = re.compile(r"gemm|nvjet|cutlass|wgmma|xmma|Cijk_|wgrad|dgrad|implicit_convolve", re.IGNORECASE)
MATRIX_PRODUCTS, OTHER_KERNELS = "matrix products", "other kernels"


def is_matrix_product(kernel: str) -> bool:
    """Whether a kernel multiplies matrices, by its name."""
    return _PRODUCT.search(kernel) is not None


class Contention(Struct, frozen=True):
    """The slowdown of one class of kernels by communication beside them.

    Attributes:
        kernels: The class.
        slowdown: Time lost in each unit of time beside communication; absent where no kernel could be compared.
        compared: How many overlapped kernels it rests on.
        overlapped_ns: Time that kernels of the class ran beside communication, on all ranks.
        estimate: The slowdown that their grids let expect, for want of a measured one: communication keeps some
            multiprocessors for itself; absent where the traces state no grids.
    """

    kernels: str
    slowdown: float | None
    compared: int
    overlapped_ns: int
    estimate: float | None = None

    def data(self) -> dict[str, str | float | int | None]:
        """One entry of ``contention`` in JSON."""
        return {
            "kernels": self.kernels,
            "slowdown": self.slowdown,
            "compared": self.compared,
            "overlapped_us": self.overlapped_ns / NS_PER_US,
            "estimated_slowdown": self.estimate,
        }


class _Sharing(Struct, frozen=True, eq=False):
    """A rank's kernels of marked steps: what they share with communication, and how long they take alone.

    ``expected`` is the slowdown that each kernel's grid lets expect; absent where grids are not stated.
    """

    rows: Int64
    is_product: Bool
    shared_ns: Int64
    alone_ns: Int64
    expected: Float64 | None


def measure_contention(ranks: Sequence[RankGraph]) -> tuple[Contention, ...]:
    """The contention of each class of kernels, over all ranks."""
    sharings = [_compare_with_themselves(graph) for graph in ranks]
    return tuple(_pool(ranks, sharings, name) for name in (MATRIX_PRODUCTS, OTHER_KERNELS))


def without_contention(graph: RankGraph, contention: Sequence[Contention], removed: Bool) -> Int64:
    """For each event of a rank how long it would run without some of the communication beside it."""
    sharing = _compare_with_themselves(graph)
    duration_ns = graph.duration_ns.copy()
    rows = sharing.rows
    factor = _slowdowns(sharing, contention)
    share = sharing.shared_ns / np.maximum(duration_ns[rows], 1)
    estimated_ns = np.rint(duration_ns[rows] / (1 + factor * share)).astype(np.int64)
    alone_ns = np.where(sharing.alone_ns != ABSENT, np.minimum(sharing.alone_ns, duration_ns[rows]), estimated_ns)
    removed_spans = union(graph.start_ns[removed], graph.end_ns[removed])
    removed_ns = removed_spans.measure_within(graph.start_ns[rows], graph.end_ns[rows])
    lost_ns = (duration_ns[rows] - alone_ns) * (removed_ns / np.maximum(sharing.shared_ns, 1))
    duration_ns[rows] -= np.where(share >= _ALONE, np.rint(lost_ns), 0).astype(np.int64)
    return duration_ns


def lost_beside(ranks: Sequence[RankGraph], contention: Sequence[Contention]) -> float | None:
    """The share of a time beside communication that computation loses, over the kernels of marked steps.

    Absent where it was neither measured nor can be expected from grids.
    """
    lost_ns = total_ns = 0.0
    for graph in ranks:
        sharing = _compare_with_themselves(graph)
        if sharing.expected is None and all(item.slowdown is None for item in contention):
            return None
        slowdown = _slowdowns(sharing, contention)
        duration_ns = graph.duration_ns[sharing.rows]
        lost_ns += float((duration_ns * slowdown / (1 + slowdown)).sum())
        total_ns += float(duration_ns.sum())
    return lost_ns / total_ns if total_ns else None


def _slowdowns(sharing: _Sharing, contention: Sequence[Contention]) -> Float64:
    """For each kernel how communication slows it: as measured for its class, else as its grid lets expect."""
    slowdown = np.zeros(len(sharing.rows)) if sharing.expected is None else sharing.expected.copy()
    for item in contention:
        if item.slowdown is not None:
            slowdown[sharing.is_product == (item.kernels == MATRIX_PRODUCTS)] = item.slowdown
    return slowdown


def _expect_slowdown(graph: RankGraph, rows: Int64, is_product: Bool) -> Float64 | None:
    """The slowdown that the grids of kernels let expect beside this rank's communication."""
    blocks = graph.blocks
    occupied = blocks[graph.work == Work.COMMUNICATION] if len(blocks) else blocks
    occupied = occupied[(occupied != ABSENT) & (occupied < MANY_BLOCKS)]
    if not len(occupied) or graph.processors <= 0:
        return None
    return slowdown_beside(blocks[rows], is_product, int(occupied.max()), graph.processors)


def _compare_with_themselves(graph: RankGraph) -> _Sharing:
    """For each kernel of a marked step the time beside communication, and its duration alone or ABSENT."""
    is_communication = graph.work == Work.COMMUNICATION
    rows = np.flatnonzero((graph.work == Work.COMPUTE) & (graph.step != ABSENT))
    communicating = union(graph.start_ns[is_communication], graph.end_ns[is_communication])
    shared_ns = communicating.measure_before(graph.end_ns[rows]) - communicating.measure_before(graph.start_ns[rows])
    share = shared_ns / np.maximum(graph.duration_ns[rows], 1)
    alone_ns = np.full(len(rows), ABSENT, np.int64)
    group = _same_neighbours(graph, rows) if shared_ns.any() else rows[:0]
    order = np.argsort(group, kind="stable")
    duration_ns = graph.duration_ns[rows]
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        alone = duration_ns[members[share[members] < _ALONE]]
        if len(alone) < _FEWEST_ALONE or len(alone) == len(members):
            continue
        low, middle, high = np.quantile(alone, (0.25, 0.5, 0.75))
        if high <= _LARGEST_SPREAD * low:
            alone_ns[members] = int(middle)
    is_product_name = np.array([is_matrix_product(name) for name in graph.names], np.bool_)
    is_product = is_product_name[graph.name[rows]]
    return _Sharing(rows, is_product, shared_ns, alone_ns, _expect_slowdown(graph, rows, is_product))


def _same_neighbours(graph: RankGraph, rows: Int64) -> Int64:
    """A number for each kernel, the same where its name and those of its neighbours on its stream are."""
    count = len(graph.name)
    if not len(rows):
        return rows
    names, number = np.unique(graph.name, return_inverse=True)
    columns = []
    for distance in range(-_NEIGHBOURS, _NEIGHBOURS + 1):
        neighbour = np.clip(rows + distance, 0, max(count - 1, 0))
        is_there = (rows + distance == neighbour) & (graph.stream[neighbour] == graph.stream[rows])
        columns.append(np.where(is_there, number[neighbour] + 1, 0))
    kinds = len(names) + 1
    group = columns[0]
    for column in columns[1:]:
        if int(group.max()) >= _MOST_NUMBERS // kinds:
            group = np.unique(group, return_inverse=True)[1]
        group = group * kinds + column
    together: Int64 = np.unique(group, return_inverse=True)[1]
    return together


def _pool(ranks: Sequence[RankGraph], sharings: Sequence[_Sharing], kernels: str) -> Contention:
    lost_ns = shared_alone_ns = expected_ns = 0.0
    is_expected = True
    compared = overlapped_ns = 0
    for graph, sharing in zip(ranks, sharings, strict=True):
        is_class = sharing.is_product == (kernels == MATRIX_PRODUCTS)
        duration_ns = graph.duration_ns[sharing.rows]
        overlapped_ns += int(sharing.shared_ns[is_class].sum())
        share = sharing.shared_ns / np.maximum(duration_ns, 1)
        used = is_class & (sharing.alone_ns != ABSENT) & (share >= _OVERLAPPED)
        lost_ns += float((duration_ns[used] - sharing.alone_ns[used]).sum())
        shared_alone_ns += float((sharing.alone_ns[used] * share[used]).sum())
        compared += int(used.sum())
        is_expected = is_expected and sharing.expected is not None
        if sharing.expected is not None:
            expected_ns += float((sharing.expected * sharing.shared_ns)[is_class].sum())
    slowdown = max(0.0, lost_ns / shared_alone_ns) if shared_alone_ns else None
    estimate = expected_ns / overlapped_ns if is_expected and overlapped_ns else None
    return Contention(kernels, slowdown, compared, overlapped_ns, estimate)
