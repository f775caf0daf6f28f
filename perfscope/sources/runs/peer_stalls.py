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
from perfscope.tables.steps import FIRST_STEP, SLOW, WINDOW, PeerStall, Steps
from perfscope.tables.timeline import Timeline

#: Ranks that save together are not stalled at quite the same moments.
_SHORTEST_WAIT_NS = NS_PER_MS
_OF_SPANS = (SAVE, wire.VALIDATION, wire.GENERATION, wire.COMPILATION, wire.GARBAGE)
#: Two, because the first one may be the rank that asks.
_LONGEST = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Stalls:
    """What the ranks of a job did of one kind, on one clock: disjoint stretches, a row each with its start and its end.

    ``longest`` are, for each stretch of all, the ranks with the longest stretches in it.
    """

    by_rank: Mapping[int, Int64]
    of_all: Int64
    longest: tuple[tuple[int, ...], ...]

    def wait_ns(self, rank: int, begins_ns: Int64, ends_ns: Int64) -> Int64:
        """For how long of each step others did it, and this rank did not."""
        own = self.by_rank.get(rank, np.zeros((0, 2), np.int64))
        waits_ns = _covered(self.of_all, begins_ns, ends_ns) - _covered(own, begins_ns, ends_ns)
        return np.asarray(np.maximum(waits_ns, 0), np.int64)

    def find_rank(self, rank: int, begin_ns: int, end_ns: int) -> int:
        """The rank that another one waits for in a step."""
        shared_ns = np.minimum(self.of_all[:, 1], end_ns) - np.maximum(self.of_all[:, 0], begin_ns)
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


def _list_own(table: Steps, timeline: Timeline, offset_ns: int) -> dict[str, Int64]:
    spans, ends = timeline.spans, table.end_ns
    edges = np.stack([spans.start_ns, spans.end_ns], axis=1)
    own = {kind: edges[spans.kind == kind] for kind in _OF_SPANS}
    begins = np.ma.filled(table.begin_ns, 0)
    is_timed, is_first = present(table.begin_ns), table.step == 1
    own[FIRST_STEP] = np.stack([begins, ends], axis=1)[is_timed & is_first]
    previous = np.concatenate([begins[:1], ends[:-1]])
    boundaries = np.stack([previous, begins], axis=1)[is_timed & (table.window != "")]
    in_windows = np.stack([begins, ends], axis=1)[is_timed & np.isin(table.window, ("warmup", "profiled"))]
    own[WINDOW] = np.concatenate([boundaries, in_windows])
    return {kind: _merge(stretches + offset_ns)[0] for kind, stretches in own.items() if len(stretches)}


def _join(by_rank: Mapping[int, Int64]) -> _Stalls:
    ranks = np.repeat(list(by_rank), [len(stretches) for stretches in by_rank.values()])
    every = np.concatenate(list(by_rank.values()))
    of_all, owner = _merge(every)
    order = np.lexsort((every[:, 0] - every[:, 1], owner))
    longest: list[list[int]] = [[] for _ in of_all]
    for stretch, rank in zip(owner[order].tolist(), ranks[order].tolist(), strict=True):
        if len(longest[stretch]) < _LONGEST and rank not in longest[stretch]:
            longest[stretch].append(rank)
    return _Stalls(by_rank, of_all, tuple(map(tuple, longest)))


def _merge(stretches: Int64) -> tuple[Int64, Int64]:
    """Stretches as disjoint ones, ascending, and for each stretch which of these it is a part of."""
    order = np.argsort(stretches[:, 0], kind="stable")
    starts, ends = stretches[order, 0], np.maximum.accumulate(stretches[order, 1])
    is_first = np.concatenate([[True], starts[1:] > ends[:-1]])
    owner = np.empty(len(order), np.int64)
    owner[order] = np.cumsum(is_first) - 1
    is_last = np.concatenate([is_first[1:], [True]])
    return np.stack([starts[is_first], ends[is_last]], axis=1), owner


def _covered(stretches: Int64, begins_ns: Int64, ends_ns: Int64) -> Int64:
    before = np.concatenate([[0], np.cumsum(stretches[:, 1] - stretches[:, 0])])

    def until(moments: Int64) -> Int64:
        row = np.searchsorted(stretches[:, 0], moments, side="right") - 1
        within = np.minimum(moments, stretches[row, 1]) - stretches[row, 0]
        return np.asarray(np.where(row < 0, 0, before[row] + within), np.int64)

    if not len(stretches):
        return np.zeros(len(ends_ns), np.int64)
    return np.asarray(np.maximum(until(ends_ns) - until(begins_ns), 0), np.int64)


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
