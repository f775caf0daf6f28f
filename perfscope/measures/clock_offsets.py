"""How far two clocks are apart: not at all on one host, else by the ends of operations that two ranks made together.

No rank can leave a collective before all have arrived, so its ends nearly coincide. But the rank that arrives last
leaves last: on two H200 by 14 us, 8 % of the transfer, on four by 3 %. So two medians of the differences of the ends
are taken: one per rank that arrived last. The offset of the clocks is midway between them, or the median over
operations that both began together. Where the same rank always arrived last, it is the median over the half with the
shortest transfers. It may then be wrong by a tenth of these.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from perfscope.constants import NS_PER_MS
from perfscope.measures.statistics import FEWEST_FOR_MEDIAN
from perfscope.tables.columns import Float64, Int64

#: Ranks of the same host see the end of a collective microseconds apart.
_SAME_CLOCK_NS = NS_PER_MS
#: How much later than the others the last rank leaves, as a share of the transfer, at most.
_LARGEST_SKEW = 0.1


class Offset(Struct, frozen=True):
    """One clock against another: its time minus the other's, from some operations.

    ``residual_ns`` is the median absolute deviation of single operations from what they should be, and how far the
    offset may be wrong because the same rank always came last.
    """

    offset_ns: float
    residual_ns: float
    operations: int


def is_one_host(first: str, second: str) -> bool:
    """Whether two ranks ran on the same host, and so have the same clock; ``""`` is a host that is not stated."""
    return first == second != ""


def is_apart(first: str, second: str, offset: Offset) -> bool:
    """Whether two clocks differ: those of hosts that are not stated do where collectives clearly say so."""
    if first and second:
        return first != second
    return abs(offset.offset_ns) >= _SAME_CLOCK_NS and abs(offset.offset_ns) > offset.residual_ns


def find_offset(difference_ns: Int64, lead_ns: Int64, transfer_ns: Int64) -> Offset:
    """The offset of two clocks, by the differences of the ends of their operations, at least one.

    ``lead_ns`` is how much later the one rank came, by the durations; ``transfer_ns`` is from the last arrival on.
    """
    largest = transfer_ns * _LARGEST_SKEW
    is_last, is_first = lead_ns > largest, lead_ns < -largest
    together = ~(is_last | is_first)
    last, first = int(is_last.sum()), int(is_first.sum())
    if min(last, first) >= FEWEST_FOR_MEDIAN:
        skew = (np.median(difference_ns[is_last]) - np.median(difference_ns[is_first])) / 2
        return _offset_of(np.where(is_last, difference_ns - skew, difference_ns + skew)[~together])
    if together.sum() >= max(last, first):
        return _offset_of(difference_ns[together])
    count = max((len(transfer_ns) + 1) // 2, min(len(transfer_ns), FEWEST_FOR_MEDIAN))
    shortest = np.argsort(transfer_ns, kind="stable")[:count]
    return _offset_of(difference_ns[shortest], float(np.median(largest[shortest])))


def _offset_of(differences: Float64 | Int64, uncertainty: float = 0.0) -> Offset:
    offset_ns = float(np.median(differences))
    return Offset(offset_ns, float(np.median(np.abs(differences - offset_ns))) + uncertainty, len(differences))
