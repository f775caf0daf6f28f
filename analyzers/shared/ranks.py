"""Which ranks a set of traces holds, and which of them are missing, double or without a device.

A rank that was profiled in several windows has several traces, one after the other; two of its traces that overlap in
time are one too many.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from perfscope.tables.trace import ABSENT, Trace, join

_MOST_NAMED = 8
#: A profiler that loses more of the launches than this has not seen the device whole.
MOST_LOST_FRACTION = 0.01
_LAUNCHES = re.compile(r"^(?:cuda|cu|hip)\w*Launch\w*Kernel|^(?:cuda|hip)(?:Memcpy|Memset)\w*Async")


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What one trace says of itself.

    Attributes:
        path: The file.
        rank: Whose it is; absent where nothing tells.
        world_size: Ranks of the job; absent where nothing tells.
        device_events: How many things ran on devices.
        launches: How many calls launched something on a device.
        launches_without_event: How many of them have nothing to show for it.
        first_ns, last_ns: What time it covers, on the wall clock; both 0 where it covers none.
    """

    path: str
    rank: int | None
    world_size: int | None
    device_events: int
    launches: int
    launches_without_event: int
    first_ns: int
    last_ns: int


def facts_of(trace: Trace) -> TraceFacts:
    """What a trace says of itself."""
    launches = np.array([bool(_LAUNCHES.search(name)) for name in trace.names], np.bool_)[trace.calls.name]
    correlation = trace.calls.correlation
    has_event = (correlation == ABSENT) | (join(correlation, trace.device.correlation) != ABSENT)
    tables = [table for table in (trace.device, trace.annotations, trace.calls, trace.operators) if len(table)]
    return TraceFacts(
        path=trace.path,
        rank=trace.rank,
        world_size=trace.world_size,
        device_events=len(trace.device),
        launches=int(launches.sum()),
        launches_without_event=int((launches & ~has_event).sum()),
        first_ns=min((trace.base_ns + int(table.start_ns[0]) for table in tables), default=0),
        last_ns=max((trace.base_ns + int(table.start_ns[-1]) for table in tables), default=0),
    )


def rank_labels(owners: Sequence[tuple[int | None, int]]) -> list[str]:
    """What people read of ranks and their devices: the device stands there where a rank drives several.

    >>> rank_labels([(0, 0), (0, 1), (1, 1), (None, 0)])
    ['0 device 0', '0 device 1', '1', 'unknown']
    """
    devices: dict[int | None, set[int]] = defaultdict(set)
    for rank, device in owners:
        devices[rank].add(device)
    names = ["unknown" if rank is None else str(rank) for rank, _ in owners]
    return [
        f"{name} device {device}" if len(devices[rank]) > 1 else name
        for name, (rank, device) in zip(names, owners, strict=True)
    ]


def findings(facts: Sequence[TraceFacts]) -> list[str]:
    """What is missing, double or silent, in words; a trace that stands alone misses nobody."""
    return [
        *_missing(facts),
        *_double(facts),
        *_without_device(facts),
        *_without_kernels(facts),
        *_unknown(facts),
    ]


def _missing(facts: Sequence[TraceFacts]) -> list[str]:
    worlds = {fact.world_size for fact in facts if fact.world_size}
    if len(worlds) > 1:
        return [f"the traces are of jobs of different sizes: {_enumerate(sorted(worlds))} ranks"]
    if not worlds or len(facts) == 1:
        return []
    expected = worlds.pop()
    missing = sorted(set(range(expected)) - {fact.rank for fact in facts if fact.rank is not None})
    if not missing:
        return []
    return [f"{len(missing)} of {expected} ranks have no trace: {_enumerate(missing)}"]


def _double(facts: Sequence[TraceFacts]) -> list[str]:
    by_rank: dict[int, list[TraceFacts]] = defaultdict(list)
    for fact in facts:
        if fact.rank is not None:
            by_rank[fact.rank].append(fact)
    found = []
    for rank, traces in sorted(by_rank.items()):
        traces.sort(key=lambda fact: (fact.first_ns, fact.path))
        double = [later.path for earlier, later in pairwise(traces) if later.first_ns < earlier.last_ns]
        if double:
            found.append(
                f"rank {rank} has {len(double) + 1} traces of the same time, all of them shown: "
                f"{_enumerate([traces[0].path, *double])}"
            )
    return found


def _without_device(facts: Sequence[TraceFacts]) -> list[str]:
    silent = [fact for fact in facts if not fact.device_events]
    if not silent or len(silent) == len(facts):
        return []
    return [f"{len(silent)} of {len(facts)} traces hold no GPU events, others do: {_enumerate(_names(silent))}"]


def _without_kernels(facts: Sequence[TraceFacts]) -> list[str]:
    """Launches whose kernels the profiler lost, which is what happens when two of them want the same GPU."""
    why = "another profiler (DCGM, Nsight, a second torch.profiler) may hold the GPU's counters"
    found = []
    blind = [fact for fact in facts if fact.launches and not fact.device_events]
    if blind:
        found.append(
            f"{len(blind)} traces hold launches but not one of their kernels: {_enumerate(_names(blind))}; {why}"
        )
    for fact in facts:
        lost = fact.launches_without_event
        if fact.device_events and lost > MOST_LOST_FRACTION * fact.launches:
            name = _names([fact])[0]
            found.append(f"{name}: {lost} of {fact.launches} launches have no GPU event; {why}")
    return found


def _unknown(facts: Sequence[TraceFacts]) -> list[str]:
    unknown = [fact.path for fact in facts if fact.rank is None]
    if not unknown or len(facts) == 1:
        return []
    return [f"{len(unknown)} traces do not tell their rank, nor do their names: {_enumerate(unknown)}"]


def _names(facts: Sequence[TraceFacts]) -> list[str]:
    return [fact.path if fact.rank is None else f"rank {fact.rank}" for fact in facts]


def _enumerate(things: list[str] | list[int]) -> str:
    named = ", ".join(str(thing) for thing in things[:_MOST_NAMED])
    return named if len(things) <= _MOST_NAMED else f"{named} and {len(things) - _MOST_NAMED} more"
