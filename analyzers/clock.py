"""How far the clocks of the ranks are apart, and how well that is known.

Ranks of one host have one clock. Between hosts the ends of collectives give the offset of two clocks and its residual
(``perfscope.measures.clock_offsets``). The traces support no claim about times on two ranks that is finer than
the residual. Ranks that share no group with the reference are reached through other ranks, and their residuals add up.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from perfscope.analyzers.collectives.calls import EXCHANGES, SYNCHRONISING
from perfscope.analyzers.collectives.matching import MatchedCalls, match
from perfscope.analyzers.collectives.rank_calls import RankCalls, calls_of_groups
from perfscope.constants import NS_PER_US
from perfscope.errors import MissingInput, NoDevice
from perfscope.measures.clock_offsets import find_offset, is_apart, is_one_host
from perfscope.report import MOST_ROWS, Section
from perfscope.result import Column, Doc, Figures, InUnitIfKnown, Result, Table, figure
from perfscope.tables.trace import ABSENT


class RankClock(Figures, frozen=True):
    """One rank's clock against the reference's."""

    rank: Annotated[int, Doc("The rank.")]
    host: Annotated[str | None, Doc("Its machine; None where not stated.")]
    offset_ns: float | None
    residual_ns: float | None
    operations: Annotated[int, Doc("The fewest collectives that a connection rests on; 0 within a host.")]
    offset_us = InUnitIfKnown(
        "offset_ns", NS_PER_US, "Its clock's time minus the reference's; None where no collective connects them."
    )
    residual_us = InUnitIfKnown("residual_ns", NS_PER_US, "The uncertainty of the offset.")


class ClockOffsets(Result, frozen=True):
    """``results.clock``: how far the clocks of ranks are apart."""

    reference_rank: Annotated[int, Doc("The rank whose clock the others are compared with.")]
    ranks: Annotated[Sequence[RankClock], Doc("Each rank.")]

    TABLES = (
        Table(
            "Clocks",
            "ranks",
            (
                Column("Rank", "rank", str),
                Column("Host", lambda rank: rank.host or "not stated"),
                Column("Offset (us)", "offset_us"),
                Column("Residual (us)", "residual_us"),
                Column("Collectives", "operations"),
            ),
        ),
    )

    @figure
    def one_host(self) -> bool | None:
        """Whether all ranks ran on one machine; None where a trace does not name it."""
        hosts = {rank.host for rank in self.ranks}
        return None if None in hosts else len(hosts) == 1

    def groups_of_ranks(self) -> tuple[str, Mapping[int, str]]:
        """The host of each rank that states it."""
        return "host", {rank.rank: rank.host for rank in self.ranks if rank.host}

    def sections(self) -> tuple[Section, ...]:
        """A table of ranks."""
        note = (
            f"Offset of each rank's clock from that of rank {self.reference_rank}: none on one host, else by the ends "
            "of common collectives. The residual limits how finely times of two ranks can be compared."
        )
        return (self.TABLES[0].section(self.ranks, [note], most=MOST_ROWS),)


class _Link(Struct, frozen=True):
    """One rank's clock against another's, by the collectives that they made together or through other ranks."""

    offset: float = 0.0
    residual: float = 0.0
    operations: int = 0

    def then(self, next_link: _Link) -> _Link:
        operations = min(self.operations or next_link.operations, next_link.operations or self.operations)
        return _Link(self.offset + next_link.offset, self.residual + next_link.residual, operations)


#: Two ranks of one host.
_ONE_CLOCK = _Link()


class _Links(defaultdict[int, dict[int, _Link]]):
    """By rank, the ranks that it made collectives with, and their clocks against its own."""

    def __init__(self) -> None:
        super().__init__(dict)

    def add(self, first: int, partner: int, link: _Link) -> None:
        """Add the clock of a rank against another's; of several the first one with the smallest residual counts."""
        known = self[first].get(partner)
        if known is None or link.residual < known.residual:
            self[first][partner] = link
            self[partner][first] = _Link(-link.offset, link.residual, link.operations)


def analyze(partials: Sequence[tuple[RankCalls, ...]]) -> ClockOffsets:
    """Align every rank to the lowest one; MissingInput where no two ranks made the same collectives."""
    if not partials:
        raise NoDevice("the traces contain no GPU events")
    named = {part.rank: part.host for partial in partials for part in partial if part.rank is not None}
    hosts = dict(sorted(named.items()))
    links = _link_ranks(partials, hosts)
    if not links:
        raise MissingInput("needs the traces of two ranks or more of one host, or that made collectives together")
    first = next(iter(hosts))
    reached = _reach(first, links)
    return ClockOffsets(
        first,
        tuple(
            RankClock(rank, host or None, link.offset, link.residual, link.operations)
            if (link := reached.get(rank)) is not None
            else RankClock(rank, host, None, None, 0)
            for rank, host in hosts.items()
        ),
    )


def _link_ranks(partials: Sequence[tuple[RankCalls, ...]], hosts: Mapping[int, str]) -> _Links:
    """From the first rank of each host to its others, and of each group to those that it made collectives with."""
    links, firsts = _Links(), dict[str, int]()
    for rank, host in hosts.items():
        if host and firsts.setdefault(host, rank) != rank:
            links.add(firsts[host], rank, _ONE_CLOCK)
    if len(links) == len(hosts) and len(set(hosts.values())) == 1:
        return links  # all are of one host
    for key, calls in calls_of_groups(partials).items():
        numbered = {rank: of_rank for rank, of_rank in calls.items() if rank >= 0}
        if key.sender == ABSENT and len(numbered) > 1:
            _link_group(match(numbered, with_ends=True), hosts, links)
    return links


def _link_group(matched: MatchedCalls, hosts: Mapping[int, str], links: _Links) -> None:
    # The ends of an operation nearly coincide; but who gets nothing in an exchange may leave it early.
    aligns = [
        kind.operation in SYNCHRONISING and (kind.operation not in EXCHANGES or kind.bytes != ABSENT)
        for kind in matched.kinds
    ]
    chosen = np.array(aligns, np.bool_)[matched.kind]
    ends, durations, (first, *others) = matched.end_ns, matched.duration_ns, matched.ranks
    for row, rank in enumerate(others, 1):
        names = hosts.get(first, ""), hosts.get(rank, "")
        both = chosen & (ends[0] != ABSENT) & (ends[row] != ABSENT)
        if is_one_host(*names) or not both.any():
            continue
        lead = (durations[0] - durations[row])[both]
        found = find_offset((ends[row] - ends[0])[both], lead, matched.transfer_ns[both])
        offset, residual = found.offset_ns, found.residual_ns
        if not is_apart(*names, found):
            offset, residual = 0.0, abs(offset) + residual
        links.add(first, rank, _Link(offset, residual, found.operations))


def _reach(first: int, links: _Links) -> dict[int, _Link]:
    """The chain of links from the first rank to each that has the smallest residual."""
    chains = {first: _ONE_CLOCK}
    waiting = deque((first,))
    while waiting:
        own = waiting.popleft()
        for neighbour, link in links[own].items():
            chain = link if own == first else chains[own].then(link)
            if neighbour not in chains or chain.residual < chains[neighbour].residual:
                chains[neighbour] = chain
                waiting.append(neighbour)
    return chains
