"""How far the clocks of the ranks are apart, and how well that is known.

Ranks of one host have one clock. Between hosts the ends of collectives tell the offset of two clocks and its residual
(``perfscope.analyzers.shared.clock_offsets``); a claim about times on two ranks that is finer than the residual is not
supported by the traces. Ranks that share no group
with the reference are reached through other ranks, and their residuals add up. In a window of ten seconds or more a
drift is fitted, too.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import isnan, nan
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from perfscope.analyzers.communication.calls import EXCHANGES, SYNCHRONISING, Kind
from perfscope.analyzers.communication.matched import MatchedCalls
from perfscope.analyzers.communication.matching import match
from perfscope.analyzers.communication.rank_calls import CallsByGroup, RankCalls
from perfscope.analyzers.shared.clock_offsets import find_offset, is_apart, is_one_host
from perfscope.analyzers.shared.rank_labels import LabelOfRank
from perfscope.constants import NS_PER_S, NS_PER_US
from perfscope.errors import MissingInput, NoDevice
from perfscope.report import Column, Json, Section, long_table
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT

_DRIFT_MATTERS_AFTER_NS = 10 * NS_PER_S
_FEWEST_FOR_DRIFT = 8
_MOST_ROWS = 40
_FEWEST_RANKS = 2
#: The residual and the place of a rank as bytes, which are ordered as both are: half as large as the two as objects.
_ORDER = struct.Struct(">dI")


class RankClock(Struct, frozen=True):
    """One rank's clock against the reference's.

    Attributes:
        rank: The rank.
        host: Its machine; ``""`` where not stated.
        offset_ns: Its clock's time minus the reference's; absent where no collective connects them.
        residual_ns: The uncertainty of the offset; absent likewise.
        operations: The fewest collectives that a connection rests on; 0 where it is that of one host.
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
            "ranks": [item.data() for item in self.ranks],
        }

    def groups_of_ranks(self) -> tuple[str, Mapping[int, str]]:
        """The host of each rank that states it."""
        return "host", LabelOfRank((rank.rank, rank.host) for rank in self.ranks if rank.host)

    def sections(self) -> tuple[Section, ...]:
        """A table of ranks."""
        rows = tuple(
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
            f"Offset of each rank's clock from that of rank {self.reference}: none on one host, else by the ends of "
            "common collectives. The residual limits how finely times of two ranks can be compared."
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
        operations = min(self.operations or next_link.operations, next_link.operations or self.operations)
        return _Link(self.offset + next_link.offset, self.residual + next_link.residual, operations, drift)


#: Two ranks of one host.
_ONE_CLOCK = _Link(0.0, 0.0, 0, 0.0)


class _Clocks:
    """Clocks against others, as columns: they may be many."""

    def __init__(self) -> None:
        self.offsets, self.residuals, self.drifts = array("d"), array("d"), array("d")
        self.operations = array("i")

    def append(self, link: _Link) -> None:
        """Add one."""
        self.offsets.append(link.offset)
        self.residuals.append(link.residual)
        self.operations.append(link.operations)
        self.drifts.append(nan if link.drift is None else link.drift)

    def __setitem__(self, row: int, link: _Link) -> None:
        self.offsets[row], self.residuals[row], self.operations[row] = link.offset, link.residual, link.operations
        self.drifts[row] = nan if link.drift is None else link.drift

    def __getitem__(self, row: int) -> _Link:
        drift = None if isnan(self.drifts[row]) else self.drifts[row]
        return _Link(self.offsets[row], self.residuals[row], self.operations[row], drift)


class _Links:
    """The clocks of each group's ranks against that of its first one, by the collectives that they made together."""

    def __init__(self) -> None:
        self.clocks, self.partners = _Clocks(), array("q")
        self.firsts, self.begins = array("q"), array("q")

    def __len__(self) -> int:
        return len(self.partners)

    def begin_group(self, first: int) -> None:
        """Begin a group with its first rank."""
        self.firsts.append(first)
        self.begins.append(len(self))

    def append(self, partner: int, link: _Link) -> None:
        """Add the clock of another rank of the group against that of the first one."""
        self.partners.append(partner)
        self.clocks.append(link)


class _Neighbours:
    """The links of each rank, in both directions.

    Where two ranks have several, the one with the smallest residual counts, and of equal ones the first.
    """

    def __init__(self, links: _Links) -> None:
        self._clocks = links.clocks
        self._firsts, self._begins = np.frombuffer(links.firsts, np.int64), np.append(links.begins, len(links))
        self._partners = np.frombuffer(links.partners, np.int64)
        self._residuals = np.frombuffer(links.clocks.residuals, np.float64)
        self._by_partner = np.argsort(self._partners, kind="stable")
        self._by_first = np.argsort(self._firsts, kind="stable")

    def of(self, rank: int) -> Iterator[tuple[int, _Link]]:
        """The ranks that a rank made collectives with, and their clocks against its own."""
        backward = _find(rank, self._partners, self._by_partner)
        firsts = self._firsts[self._begins.searchsorted(backward, "right") - 1]
        groups = _find(rank, self._firsts, self._by_first).tolist()
        forward = [np.arange(self._begins[group], self._begins[group + 1]) for group in groups]
        rows = np.concatenate([backward, *forward])
        ranks = np.concatenate([firsts, *(self._partners[of_group] for of_group in forward)])
        last = None
        for index in np.lexsort((rows, self._residuals[rows], ranks)).tolist():
            neighbour, link = int(ranks[index]), self._clocks[rows[index]]
            if neighbour != last:
                yield neighbour, link.reversed() if index < len(backward) else link
            last = neighbour


def _find(rank: int, ranks: Int64, order: Int64) -> Int64:
    """Where a rank stands among ranks, of which ``order`` is the order."""
    begin, end = (int(ranks.searchsorted(rank, side, order)) for side in ("left", "right"))
    return order[begin:end]


def analyze(partials: Sequence[tuple[RankCalls, ...]]) -> Clock:
    """Align every rank to the lowest one.

    Raises:
        MissingInput: No two ranks made the same collectives.
    """
    if not partials:
        raise NoDevice("the traces contain no GPU events")
    hosts = LabelOfRank((part.rank, part.host) for partial in partials for part in partial if part.rank is not None)
    links = _link_ranks(partials, hosts)
    if not links:
        raise MissingInput("needs the traces of two ranks or more of one host, or that made collectives together")
    ranks = array("q", hosts)
    reached = _reach(ranks, _Neighbours(links))
    return Clock(
        ranks[0],
        tuple(_clock(rank, host, link) for (rank, host), link in zip(hosts.items(), reached, strict=True)),
    )


def _clock(rank: int, host: str, link: _Link | None) -> RankClock:
    if link is None:
        return RankClock(rank, host, None, None, 0, None)
    return RankClock(rank, host, link.offset, link.residual, link.operations, link.drift)


def _link_ranks(partials: Sequence[tuple[RankCalls, ...]], hosts: Mapping[int, str]) -> _Links:
    """From the first rank of each host to its others, and of each group to those that it made collectives with."""
    links = _Links()
    _link_hosts(hosts, links)
    if len(links) == len(hosts) - 1:
        return links  # all are of one host
    for key, calls in CallsByGroup(partials).items():
        numbered = calls.numbered()
        if key.sender == ABSENT and len(numbered) >= _FEWEST_RANKS:
            _link_group(match(numbered, with_ends=True), hosts, links)
    return links


def _link_hosts(hosts: Mapping[int, str], links: _Links) -> None:
    """Add the links of each host, whose ranks have one clock."""
    ranks_of: dict[str, array[int]] = {}
    for rank, host in hosts.items():
        ranks_of.setdefault(host, array("q")).append(rank)
    for host, (first, *others) in ranks_of.items():
        if host and others:
            links.begin_group(first)
            for rank in others:
                links.append(rank, _ONE_CLOCK)


def _link_group(matched: MatchedCalls, hosts: Mapping[int, str], links: _Links) -> None:
    """Add the links of a group between hosts."""
    synchronises = np.array([_aligns(kind) for kind in matched.kinds], np.bool_)
    chosen = synchronises[matched.kind]
    reference: _Times | None = None
    for rows in matched.read():
        for row, (duration_ns, end_ns) in enumerate(zip(rows.duration_ns, rows.end_ns, strict=True), rows.first):
            if reference is None:  # a copy, because a row holds all others that were read with it
                reference = _Times(duration_ns.copy(), end_ns.copy())
                links.begin_group(matched.ranks[0])
                continue
            names = hosts.get(matched.ranks[0], ""), hosts.get(matched.ranks[row], "")
            if is_one_host(*names):
                continue
            link = _link(reference, _Times(duration_ns, end_ns), chosen, matched.transfer_ns, names)
            if link is not None:
                links.append(matched.ranks[row], link)


class _Times(NamedTuple):
    """How long each operation of a group took on one rank, and when it ended there."""

    duration_ns: Int64
    end_ns: Int64


def _aligns(kind: Kind) -> bool:
    """Whether the ends of an operation nearly coincide; who gets nothing in an exchange may leave it early."""
    is_stated = kind.operation not in EXCHANGES or kind.bytes != ABSENT
    return kind.operation in SYNCHRONISING and is_stated


def _link(
    reference: _Times, rank: _Times, synchronises: Bool, transfer_ns: Int64, hosts: tuple[str, str]
) -> _Link | None:
    """The clock of a rank against that of the first one; ``transfer_ns`` is of each operation."""
    chosen = synchronises & (reference.end_ns != ABSENT) & (rank.end_ns != ABSENT)
    difference = (rank.end_ns - reference.end_ns)[chosen]
    if not len(difference):
        return None
    lead = (reference.duration_ns - rank.duration_ns)[chosen]
    found = find_offset(difference, lead, transfer_ns[chosen])
    if not is_apart(*hosts, found):
        return _Link(0.0, abs(found.offset_ns) + found.residual_ns, len(found.rows), None)
    differences, moments = found.differences_ns, reference.end_ns[chosen][found.rows]
    drift = None
    if len(differences) >= _FEWEST_FOR_DRIFT and int(moments.max() - moments.min()) >= _DRIFT_MATTERS_AFTER_NS:
        seconds = (moments - moments.min()) / NS_PER_S
        drift = float(np.polyfit(seconds, differences, 1)[0])
    return _Link(found.offset_ns, found.residual_ns, len(differences), drift)


def _reach(ranks: array[int], neighbours: _Neighbours) -> Iterator[_Link | None]:
    """The best chain of links from the first rank to each: always extend the one with the smallest residual so far."""
    chains, is_reached, is_done = _Clocks(), bytearray(len(ranks)), bytearray(len(ranks))
    for _ in ranks:
        chains.append(_Link(0.0, 0.0, 0, 0.0))
    is_reached[0] = True
    waiting = [_ORDER.pack(0.0, 0)]
    while waiting:
        _, own = _ORDER.unpack(heappop(waiting))
        if is_done[own]:
            continue
        is_done[own] = True
        for neighbour, link in neighbours.of(ranks[own]):
            target = bisect_left(ranks, neighbour)
            if is_done[target]:
                continue
            chain = link if own == 0 else chains[own].then(link)
            if not is_reached[target] or chain.residual < chains.residuals[target]:
                is_reached[target] = True
                chains[target] = chain
                heappush(waiting, _ORDER.pack(chain.residual, target))
    return (chains[row] if is_reached[row] else None for row in range(len(ranks)))
