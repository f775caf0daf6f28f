"""How far the clocks of the ranks are apart, and how well that is known.

The ends of collectives tell the offset of two clocks and its residual (``perfscope.analyzers.shared.clock_offsets``); a
claim about times on two ranks that is finer than the residual is not supported by the traces. Ranks that share no group
with the reference are reached through other ranks, and their residuals add up. In a window of ten seconds or more a
drift is fitted, too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import isnan, nan

import numpy as np
from msgspec import Struct

from perfscope.analyzers.communication.calls import EXCHANGES, SYNCHRONISING, Kind
from perfscope.analyzers.communication.matching import MatchedCalls, match
from perfscope.analyzers.communication.rank_calls import CallsByGroup, RankCalls
from perfscope.analyzers.shared.clock_offsets import find_offset
from perfscope.analyzers.shared.rank_labels import LabelOfRank
from perfscope.constants import NS_PER_S, NS_PER_US
from perfscope.errors import MissingInput, NoDevice
from perfscope.packed import pack
from perfscope.report import Column, Json, Section, list_entries, long_table
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT

_DRIFT_MATTERS_AFTER_NS = 10 * NS_PER_S
_FEWEST_FOR_DRIFT = 8
_MOST_ROWS = 40
_FEWEST_RANKS = 2
_NOT_REACHED = -1


class RankClock(Struct, frozen=True):
    """One rank's clock against the reference's.

    Attributes:
        rank: The rank.
        host: Its machine; ``""`` where not stated.
        offset_ns: Its clock's time minus the reference's; absent where no collective connects them.
        residual_ns: The uncertainty of the offset; absent likewise.
        operations: The fewest collectives that a connection rests on.
        drift: Nanoseconds that its clock gains in a second; absent where the window is too short.
    """

    rank: int
    host: str
    offset_ns: float | None
    residual_ns: float | None
    operations: int
    drift: float | None

    def data(self) -> Json:
        """One entry of ``results.clock.ranks``."""
        return {
            "rank": self.rank,
            "host": self.host or None,
            "offset_us": None if self.offset_ns is None else self.offset_ns / NS_PER_US,
            "residual_us": None if self.residual_ns is None else self.residual_ns / NS_PER_US,
            "operations": self.operations,
            "drift_us_per_s": None if self.drift is None else self.drift / NS_PER_US,
        }


class Clock(Struct, frozen=True):
    """Every rank's clock."""

    reference: int
    ranks: Sequence[RankClock]

    @property
    def is_one_host(self) -> bool | None:
        """Whether all ranks ran on one machine; absent where a trace does not name it."""
        hosts = {rank.host for rank in self.ranks}
        return None if "" in hosts else len(hosts) == 1

    def data(self) -> Json:
        """``results.clock``."""
        return {
            "reference_rank": self.reference,
            "one_host": self.is_one_host,
            "ranks": list_entries(self.ranks, RankClock.data),
        }

    def groups_of_ranks(self) -> tuple[str, Mapping[int, str]]:
        """The host of each rank that states it."""
        return "host", LabelOfRank((rank.rank, rank.host) for rank in self.ranks if rank.host)

    def sections(self) -> tuple[Section, ...]:
        """A table of ranks."""
        rows = pack(
            (
                str(rank.rank),
                rank.host or "not stated",
                None if rank.offset_ns is None else rank.offset_ns / NS_PER_US,
                None if rank.residual_ns is None else rank.residual_ns / NS_PER_US,
                rank.operations,
            )
            for rank in self.ranks
        )
        columns = (
            Column("Rank"),
            Column("Host"),
            Column("Offset (us)"),
            Column("Residual (us)"),
            Column("Collectives"),
        )
        note = (
            f"Offset of each rank's clock from that of rank {self.reference}, by the ends of common collectives; the "
            "residual limits how finely times of two ranks can be compared."
        )
        return (long_table("Clocks", columns, rows, (note,), most=_MOST_ROWS),)


class _Link(Struct, frozen=True):
    """One rank's clock against another's, by the collectives that they made together or through other ranks."""

    offset: float
    residual: float
    operations: int
    drift: float | None

    def reversed(self) -> _Link:
        return _Link(-self.offset, self.residual, self.operations, None if self.drift is None else -self.drift)

    def then(self, next_link: _Link) -> _Link:
        drift = None if self.drift is None or next_link.drift is None else self.drift + next_link.drift
        operations = min(self.operations, next_link.operations)
        return _Link(self.offset + next_link.offset, self.residual + next_link.residual, operations, drift)


class _Links:
    """Clocks against each other, by the collectives that two ranks made together; columns, because they are many.

    Where two ranks have several, the one with the smallest residual counts, and of equal ones the first.
    """

    def __init__(self) -> None:
        self.ranks, self.partners, self.operations = array("q"), array("q"), array("q")
        self.offsets, self.residuals, self.drifts = array("d"), array("d"), array("d")

    def __len__(self) -> int:
        return len(self.ranks)

    def append(self, rank: int, partner: int, link: _Link) -> None:
        """Add the clock of ``partner`` against that of ``rank``."""
        self.ranks.append(rank)
        self.partners.append(partner)
        self.offsets.append(link.offset)
        self.residuals.append(link.residual)
        self.operations.append(link.operations)
        self.drifts.append(nan if link.drift is None else link.drift)

    def __getitem__(self, row: int) -> _Link:
        drift = None if isnan(self.drifts[row]) else self.drifts[row]
        return _Link(self.offsets[row], self.residuals[row], self.operations[row], drift)

    def by_rank(self) -> _Neighbours:
        """The links from each rank, in both directions."""
        ranks, partners = np.array(self.ranks, np.int64), np.array(self.partners, np.int64)
        sources, targets = np.concatenate([ranks, partners]), np.concatenate([partners, ranks])
        rows = np.tile(np.arange(len(ranks)), 2)
        order = np.lexsort((rows, np.array(self.residuals)[rows], targets, sources))
        sources, targets, rows = sources[order], targets[order], rows[order]
        is_best = np.ones(len(order), np.bool_)
        is_best[1:] = (sources[1:] != sources[:-1]) | (targets[1:] != targets[:-1])
        return _Neighbours(self, sources[is_best], targets[is_best], rows[is_best])


class _Neighbours(Struct, frozen=True, eq=False):
    """The links from each rank: ``rows`` of them lead from ``sources``, which are in order, to ``targets``."""

    links: _Links
    sources: Int64
    targets: Int64
    rows: Int64

    def of(self, rank: int) -> Iterator[tuple[int, _Link]]:
        """The ranks that a rank made collectives with, and their clocks against its own."""
        links = self.links
        begin, end = np.searchsorted(self.sources, rank, "left"), np.searchsorted(self.sources, rank, "right")
        for target, row in zip(self.targets[begin:end].tolist(), self.rows[begin:end].tolist(), strict=True):
            yield target, links[row] if links.ranks[row] == rank else links[row].reversed()


def analyze(partials: Sequence[tuple[RankCalls, ...]]) -> Clock:
    """Align every rank to the lowest one.

    Raises:
        MissingInput: No two ranks made the same collectives.
    """
    if not partials:
        raise NoDevice("the traces contain no GPU events")
    links = _link_ranks(partials)
    if not links:
        raise MissingInput("needs the traces of two ranks or more that made collectives together")
    hosts = LabelOfRank((part.rank, part.host) for partial in partials for part in partial if part.rank is not None)
    ranks = array("q", hosts)
    reached = _reach(ranks, links.by_rank())
    return Clock(
        ranks[0],
        pack(_clock(rank, host, link) for (rank, host), link in zip(hosts.items(), reached, strict=True)),
    )


def _clock(rank: int, host: str, link: _Link | None) -> RankClock:
    if link is None:
        return RankClock(rank, host, None, None, 0, None)
    return RankClock(rank, host, link.offset, link.residual, link.operations, link.drift)


def _link_ranks(partials: Sequence[tuple[RankCalls, ...]]) -> _Links:
    """From the first rank of each group to the ranks that it made collectives with."""
    links = _Links()
    for key, calls in CallsByGroup(partials).items():
        numbered = calls.numbered()
        if key.sender == ABSENT and len(numbered) >= _FEWEST_RANKS:
            _link_group(match(numbered, with_ends=True), links)
    return links


def _link_group(matched: MatchedCalls, links: _Links) -> None:
    """Add the links of a group."""
    synchronises = np.array([_aligns(kind) for kind in matched.kinds], np.bool_)
    chosen, transfer_ns = synchronises[matched.kind], matched.transfer_ns
    for row, rank in enumerate(matched.ranks[1:], 1):
        link = _link(matched, row, chosen, transfer_ns)
        if link is not None:
            links.append(matched.ranks[0], rank, link)


def _aligns(kind: Kind) -> bool:
    """Whether the ends of an operation nearly coincide; who gets nothing in an exchange may leave it early."""
    is_stated = kind.operation not in EXCHANGES or kind.bytes != ABSENT
    return kind.operation in SYNCHRONISING and is_stated


def _link(matched: MatchedCalls, row: int, synchronises: Bool, transfer_ns: Int64) -> _Link | None:
    """The clock of the rank in a row against that of the first one; ``transfer_ns`` is of each operation."""
    reference, ends = matched.end_ns[0], matched.end_ns[row]
    chosen = synchronises & (reference != ABSENT) & (ends != ABSENT)
    difference = (ends - reference)[chosen]
    if not len(difference):
        return None
    lead = (matched.duration_ns[0] - matched.duration_ns[row])[chosen]
    found = find_offset(difference, lead, transfer_ns[chosen])
    differences, moments = found.differences_ns, reference[chosen][found.rows]
    drift = None
    if len(differences) >= _FEWEST_FOR_DRIFT and int(moments.max() - moments.min()) >= _DRIFT_MATTERS_AFTER_NS:
        seconds = (moments - moments.min()) / NS_PER_S
        drift = float(np.polyfit(seconds, differences, 1)[0])
    return _Link(found.offset_ns, found.residual_ns, len(differences), drift)


def _reach(ranks: array[int], neighbours: _Neighbours) -> Iterator[_Link | None]:
    """The best chain of links from the first rank to each: always extend the one with the smallest residual so far."""
    chains = _Links()
    row_of, done = array("q", [_NOT_REACHED]) * len(ranks), bytearray(len(ranks))
    chains.append(ranks[0], ranks[0], _Link(0.0, 0.0, 0, 0.0))
    row_of[0] = 0
    waiting = [(0.0, 0)]
    while waiting:
        _, own = heappop(waiting)
        if done[own]:
            continue
        done[own] = True
        for neighbour, link in neighbours.of(ranks[own]):
            target = bisect_left(ranks, neighbour)
            if done[target]:
                continue
            chain = link if own == 0 else chains[row_of[own]].then(link)
            if row_of[target] == _NOT_REACHED or chain.residual < chains.residuals[row_of[target]]:
                row_of[target] = len(chains)
                chains.append(ranks[0], neighbour, chain)
                heappush(waiting, (chain.residual, target))
    return (None if row == _NOT_REACHED else chains[row] for row in row_of)
