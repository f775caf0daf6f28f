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

from perfscope.analyzers.shared.medians import median_of
from perfscope.constants import NS_PER_MS
from perfscope.tables.columns import Float64, Int64

#: Ranks of the same host see the end of a collective microseconds apart.
_SAME_CLOCK_NS = NS_PER_MS
#: How much later than the others the last rank leaves, as a share of the transfer, at most.
_LARGEST_SKEW = 0.1
_FEWEST_OF_A_KIND = 3
#: The median of fewer may be one that was interrupted.
_FEWEST_SHORTEST = 5


class Offset(Struct, frozen=True):
    """One clock against another.

    Attributes:
        offset_ns: Its time minus the other's.
        residual_ns: The median absolute deviation of single operations from what they should be, and how far the offset
            may be wrong because the same rank always came last.
        rows: The operations that tell it.
        differences_ns: What each of these says.
    """

    offset_ns: float
    residual_ns: float
    rows: Int64
    differences_ns: Float64


def is_one_host(first: str, second: str) -> bool:
    """Whether two ranks ran on the same host, and so have the same clock; ``""`` is a host that is not stated."""
    return first == second != ""


def is_apart(first: str, second: str, offset: Offset) -> bool:
    """Whether two clocks differ: those of hosts that are not stated do where collectives clearly say so."""
    if first and second:
        return first != second
    return abs(offset.offset_ns) >= _SAME_CLOCK_NS and abs(offset.offset_ns) > offset.residual_ns


def find_offset(difference_ns: Int64, lead_ns: Int64, transfer_ns: Int64) -> Offset:
    """The offset of two clocks.

    Args:
        difference_ns: The ends on the one rank minus those on the other, at least one.
        lead_ns: How much later the one rank came than the other, by the durations, which need no clock.
        transfer_ns: How long each operation took from the arrival of the last rank on.
    """
    kinds = _choose(difference_ns, lead_ns, transfer_ns)
    differences = difference_ns[kinds.rows] - kinds.skew
    offset_ns = median_of(differences)
    residual_ns = median_of(np.abs(differences - offset_ns)) + kinds.uncertainty
    return Offset(offset_ns, residual_ns, kinds.rows, differences)


class _Chosen(Struct, frozen=True):
    """Operations that tell an offset.

    Attributes:
        rows: Which they are.
        skew: For each what the difference of its ends owes to the rank that came last, in nanoseconds.
        uncertainty: How far the offset may be wrong because that is not known, in nanoseconds.
    """

    rows: Int64
    skew: Float64
    uncertainty: float = 0.0


def _choose(difference: Int64, lead: Int64, transfer: Int64) -> _Chosen:
    """The operations that tell the offset of two clocks best.

    Args:
        difference: The ends on one rank minus those on the reference, in nanoseconds.
        lead: How much later the one rank came than the reference, by the durations, which need no clock.
        transfer: How long each operation took from the arrival of the last rank on.
    """
    largest = transfer * _LARGEST_SKEW
    is_last, is_first = lead > largest, lead < -largest
    last, first = int(np.count_nonzero(is_last)), int(np.count_nonzero(is_first))  # a sum takes several times as long
    if min(last, first) >= _FEWEST_OF_A_KIND:
        rows = np.flatnonzero(is_last | is_first)
        skew = (median_of(difference[is_last]) - median_of(difference[is_first])) / 2
        return _Chosen(rows, np.where(is_last[rows], skew, -skew))
    together = np.flatnonzero(~(is_last | is_first))
    if len(together) >= max(last, first):
        return _Chosen(together, np.zeros(len(together)))
    count = max((len(transfer) + 1) // 2, min(len(transfer), _FEWEST_SHORTEST))
    shortest = np.argsort(transfer, kind="stable")[:count]
    return _Chosen(shortest, np.zeros(len(shortest)), median_of(largest[shortest]))
