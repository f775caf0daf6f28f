"""Which ranks a set of traces holds, and which of them are missing, double or without a device.

A rank that was profiled in several windows has several traces, one after the other; two of its traces that overlap in
time are one too many.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from perfscope.tables.trace import Trace

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What one trace says of itself.

    Attributes:
        path: The file.
        rank: Whose it is; absent where nothing tells.
        world_size: Ranks of the job; absent where nothing tells.
        has_device_events: Whether anything ran on a device.
        first_ns, last_ns: What time it covers, on the wall clock; both 0 where it covers none.
    """

    path: str
    rank: int | None
    world_size: int | None
    has_device_events: bool
    first_ns: int
    last_ns: int


def facts_of(trace: Trace) -> TraceFacts:
    """What a trace says of itself."""
    tables = [table for table in (trace.device, trace.annotations, trace.calls, trace.operators) if len(table)]
    return TraceFacts(
        path=trace.path,
        rank=trace.rank,
        world_size=trace.world_size,
        has_device_events=len(trace.device) > 0,
        first_ns=min((trace.base_ns + int(table.start_ns[0]) for table in tables), default=0),
        last_ns=max((trace.base_ns + int(table.start_ns[-1]) for table in tables), default=0),
    )


@dataclass(slots=True)
class RankCheck:
    """Collects the facts of traces and says what is wrong with the set."""

    facts: list[TraceFacts] = field(default_factory=list)

    def add(self, trace: Trace) -> None:
        """Take in one trace."""
        self.facts.append(facts_of(trace))

    def findings(self) -> list[str]:
        """What is missing, double or silent, in words; a trace that stands alone misses nobody."""
        return [*self._missing(), *self._double(), *self._without_device(), *self._unknown()]

    def _missing(self) -> list[str]:
        worlds = {fact.world_size for fact in self.facts if fact.world_size}
        if len(worlds) > 1:
            return [f"the traces are of jobs of different sizes: {_enumerate(sorted(worlds))} ranks"]
        if not worlds or len(self.facts) == 1:
            return []
        expected = worlds.pop()
        missing = sorted(set(range(expected)) - {fact.rank for fact in self.facts if fact.rank is not None})
        if not missing:
            return []
        return [f"{len(missing)} of {expected} ranks have no trace: {_enumerate(missing)}"]

    def _double(self) -> list[str]:
        by_rank: dict[int, list[TraceFacts]] = defaultdict(list)
        for fact in self.facts:
            if fact.rank is not None:
                by_rank[fact.rank].append(fact)
        found = []
        for rank, facts in sorted(by_rank.items()):
            facts.sort(key=lambda fact: (fact.first_ns, fact.path))
            double = [later.path for earlier, later in pairwise(facts) if _overlap(earlier, later)]
            if double:
                found.append(
                    f"rank {rank} has {len(double) + 1} traces of the same time, all of them shown: "
                    f"{_enumerate([facts[0].path, *double])}"
                )
        return found

    def _without_device(self) -> list[str]:
        silent = [fact for fact in self.facts if not fact.has_device_events]
        if not silent or len(silent) == len(self.facts):
            return []
        named = _enumerate([fact.path if fact.rank is None else f"rank {fact.rank}" for fact in silent])
        return [f"{len(silent)} of {len(self.facts)} traces hold no GPU events, others do: {named}"]

    def _unknown(self) -> list[str]:
        unknown = [fact.path for fact in self.facts if fact.rank is None]
        if not unknown or len(self.facts) == 1:
            return []
        return [f"{len(unknown)} traces do not tell their rank, nor do their names: {_enumerate(unknown)}"]


def _overlap(earlier: TraceFacts, later: TraceFacts) -> bool:
    return later.first_ns < earlier.last_ns


def _enumerate(things: list[str] | list[int]) -> str:
    named = ", ".join(str(thing) for thing in things[:_MOST_NAMED])
    return named if len(things) <= _MOST_NAMED else f"{named} and {len(things) - _MOST_NAMED} more"
