"""Which steps of a rank another one stalled, which rank that was, and by what.

While one rank does something other than training, the others wait for it. They wait in the same step, or in a later one
where their hosts run ahead of their devices. So moments are compared, and not numbers of steps. Processes of one host
have one clock; between hosts the wall clocks count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfscope import wire
from perfscope.constants import NS_PER_MS
from perfscope.sources.runs.save_records import SAVE, host_offsets_ns
from perfscope.tables.columns import Int64, present
from perfscope.tables.intervals import Intervals, union
from perfscope.tables.steps import FIRST_STEP, SLOW, WINDOW, PeerStall, Steps
from perfscope.tables.timeline import Timeline

#: Ranks that save together are not stalled at quite the same moments.
_SHORTEST_WAIT_NS = NS_PER_MS
_OF_SPANS = (SAVE, wire.VALIDATION, wire.GENERATION, wire.COMPILATION, wire.GARBAGE)
#: Two, because the first one may be the rank that asks.
_LONGEST = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Stalls:
    """What the ranks of a job did of one kind, on one clock.

    ``longest`` are, for each stretch of all, the ranks with the longest stretches in it.
    """

    by_rank: Mapping[int, Intervals]
    of_all: Intervals
    longest: tuple[tuple[int, ...], ...]

    def wait_ns(self, rank: int, begins_ns: Int64, ends_ns: Int64) -> Int64:
        """For how long of each step others did it, and this rank did not."""
        of_all, own = (
            np.maximum(stretches.measure_within(begins_ns, ends_ns), 0)
            for stretches in (self.of_all, self.by_rank.get(rank, Intervals()))
        )
        return np.asarray(np.maximum(of_all - own, 0), np.int64)

    def find_rank(self, rank: int, begin_ns: int, end_ns: int) -> int:
        """The rank that another one waits for in a step."""
        shared_ns = np.minimum(self.of_all.end, end_ns) - np.maximum(self.of_all.start, begin_ns)
        by_share: list[int] = np.argsort(-shared_ns, kind="stable").tolist()
        return next(number for stretch in by_share for number in self.longest[stretch] if number != rank)


def find_peer_stalls(tables: Sequence[Steps], timelines: Sequence[Timeline]) -> tuple[Steps, ...]:
    """Find the steps in which a rank waited for what another one did besides training.

    A save counts where it stalls the step of this number on another rank alone. It also counts where it stalls another
    rank during a step, and not this one. All else counts where it explains more than half of what a slow step took
    longer than the median one.
    """
    lives = {(timeline.rank, timeline.attempt): timeline for timeline in timelines}
    offsets_ns = host_offsets_ns(timelines)
    marked = {}
    for attempt in {table.attempt for table in tables}:
        of_attempt = [table for table in tables if table.attempt == attempt and (table.rank, attempt) in lives]
        own = {
            table.rank: _list_own(table, lives[table.rank, attempt], offsets_ns[table.rank, attempt])
            for table in of_attempt
        }
        stalls = {kind: _join({rank: kinds[kind] for rank, kinds in own.items() if kind in kinds})
                  for kind in dict.fromkeys(kind for kinds in own.values() for kind in kinds)}  # fmt: skip
        saved = _saved(of_attempt)
        for table in of_attempt:
            marked[id(table)] = _mark(table, stalls, saved, offsets_ns[table.rank, attempt])
    return tuple(marked.get(id(table), table) for table in tables)


def _list_own(table: Steps, timeline: Timeline, offset_ns: int) -> dict[str, Intervals]:
    spans, ends = timeline.spans, table.end_ns + offset_ns
    chosen = {kind: spans.kind == kind for kind in _OF_SPANS}
    own = {
        kind: union(spans.start_ns[rows] + offset_ns, spans.end_ns[rows] + offset_ns) for kind, rows in chosen.items()
    }
    begins = np.ma.filled(table.begin_ns, 0) + offset_ns
    is_timed = present(table.begin_ns)
    is_first, is_inside = is_timed & (table.step == 1), is_timed & np.isin(table.window, ("warmup", "profiled"))
    own[FIRST_STEP] = union(begins[is_first], ends[is_first])
    previous, is_boundary = np.concatenate([begins[:1], ends[:-1]]), is_timed & (table.window != "")
    own[WINDOW] = union(previous[is_boundary], begins[is_boundary]) | union(begins[is_inside], ends[is_inside])
    return {kind: stretches for kind, stretches in own.items() if len(stretches)}


def _join(by_rank: Mapping[int, Intervals]) -> _Stalls:
    ranks = np.repeat(list(by_rank), [len(stretches) for stretches in by_rank.values()])
    start, end = (
        np.concatenate(column) for column in zip(*((own.start, own.end) for own in by_rank.values()), strict=True)
    )
    of_all = union(start, end)
    owner = np.searchsorted(of_all.start, start, side="right") - 1
    order = np.lexsort((start - end, owner))
    longest: list[list[int]] = [[] for _ in range(len(of_all))]
    for stretch, rank in zip(owner[order].tolist(), ranks[order].tolist(), strict=True):
        if len(longest[stretch]) < _LONGEST and rank not in longest[stretch]:
            longest[stretch].append(rank)
    return _Stalls(by_rank, of_all, tuple(map(tuple, longest)))


def _saved(tables: Iterable[Steps]) -> dict[int, int]:
    """For each step in which ranks were stalled by saves, the rank that was stalled longest."""
    longest: dict[int, tuple[int, int]] = {}
    for table in tables:
        rows = present(table.save_ns)
        for step, save_ns in zip(table.step[rows].tolist(), table.save_ns.data[rows].tolist(), strict=True):
            longest[step] = max(longest.get(step, (-1, -1)), (save_ns, table.rank))
    return {step: rank for step, (_, rank) in longest.items()}


def _mark(table: Steps, stalls: Mapping[str, _Stalls], saved: Mapping[int, int], offset_ns: int) -> Steps:
    ends_ns = table.end_ns + offset_ns
    begins_ns = np.concatenate([[ends_ns[0] - np.ma.filled(table.wall_ns, 0)[0]], ends_ns[:-1]])
    waits_ns = {kind: of_kind.wait_ns(table.rank, begins_ns, ends_ns) for kind, of_kind in stalls.items()}
    longest_ns = np.max([np.zeros(len(table), np.int64), *waits_ns.values()], axis=0)
    by_number = np.isin(table.step, list(saved)) & ~present(table.save_ns)
    by_save = by_number | (waits_ns.get(SAVE, np.zeros(1, np.int64)) >= _SHORTEST_WAIT_NS)
    times_ns = ends_ns - begins_ns
    usual = (table.window == "") & (table.step > 1)
    median_ns = float(np.median(times_ns[usual])) if usual.any() else np.inf
    is_slow = (times_ns > SLOW * median_ns) & (2 * longest_ns > times_ns - median_ns)
    peer_stalls = []
    for row in np.flatnonzero(by_save | is_slow).tolist():
        step, kind = int(table.step[row]), SAVE
        if is_slow[row]:
            kind = max(waits_ns, key=lambda kind: waits_ns[kind][row])
        wait_ns = int(waits_ns[kind][row]) if kind in waits_ns else 0
        rank = stalls[kind].find_rank(table.rank, int(begins_ns[row]), int(ends_ns[row])) if wait_ns else saved[step]
        peer_stalls.append(PeerStall(step, rank, kind, wait_ns))
    # Garbage is collected in steps that are the training's own.
    is_own = np.isin(table.step, [stall.step for stall in peer_stalls if stall.kind == wire.GARBAGE])
    return replace(table, stalled_elsewhere=(by_save | is_slow) & ~(is_own & ~by_save), peer_stalls=tuple(peer_stalls))
