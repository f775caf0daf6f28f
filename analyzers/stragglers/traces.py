"""Which rank makes the others wait, and why, as far as the traces show it.

In a collective every rank waits for the last one to arrive. The rank on which an operation is shortest arrived last.
The operation's excess time on the others is the wait that it caused. A *caused wait* is the mean wait of the other
ranks of the group. No clocks are compared. The straggler is the rank that caused most waiting beyond its own. There is
none where this is below a hundredth of the time, as on ranks that wait for each other by turns. Where steps are marked
on all ranks of a group, only the operations of these steps count.

Why a rank came last is what it did longer in these steps than the other ranks of its group. Ranks are compared over
kernels that all of them ran equally often, of the same name and, where the trace states it, the same grid. *Relative
compute* is the fastest rank's time for them over a rank's own, by medians: it tells a slow device. *Relative work* is a
rank's kernels over those of the rank that has least, each with the median of the rank on which it is fastest.

Products, attention and sums of recent libraries have a grid as large as the GPU, whatever they compute. Where kernels
that all ranks launch equally often have other grids on some of them, the inputs differ in size. Kernels of equal grids
then say nothing, either, but for those of the optimizer, whose work depends on the parameters alone. A kernel that runs
during a collective's wait takes up to twice its time, so that kernels that never do are compared where there are any.

Sends and receives are left out, and groups whose ranks are stages of one pipeline make no straggler. Stages wait for
each other by the order of their passes, which the pipeline bubble measures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import reduce
from math import fsum
from typing import Annotated

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.collectives.calls import SYNCHRONISING, GroupCalls, GroupKey
from perfscope.analyzers.collectives.matching import match
from perfscope.analyzers.collectives.rank_calls import RankCalls, calls_of_groups, number_ranks_and_runs
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput, NoDevice
from perfscope.measures.kernel_medians import KernelMedians, join_windows
from perfscope.measures.marked_steps import common_steps
from perfscope.measures.step_profile import PARTS, StepProfile, join_profiles
from perfscope.report import MOST_ROWS, NEGLIGIBLE, Section, percent
from perfscope.result import Column, Doc, Figures, InUnit, Result, Table, figure
from perfscope.tables.columns import Float64, Int64
from perfscope.tables.trace import ABSENT, distinct
from perfscope.units import format_ranges

#: The axes whose groups may have ranks of several stages.
_ROLES_OF_STAGES = frozenset(("PP", "MP", "world", ""))


class Why(StrEnum):
    """What makes a rank come last."""

    HOST = "host"
    LAUNCHES = "launches"
    DEVICE = "device"
    WORK = "work"
    UNKNOWN = "network"


_REASONS = {
    "copy": (Why.HOST, "its device copied longer"),
    "data_loading": (Why.HOST, "its host loaded data"),
    "synchronisation": (Why.HOST, "its host waited in a synchronisation"),
    "host": (Why.LAUNCHES, "its host was late (operators, Python, calls): launch-bound"),
    "not_shown": (Why.HOST, "its host did what the trace does not show (a sleep, Python, data)"),
    "device": (Why.UNKNOWN, "its device waited between events that had been launched"),
}
#: Kernels with other grids than on another rank take at least this share of its time where the inputs differ in size.
_RESIZED = 0.1


class Pace(Struct, frozen=True):
    """One rank in the comparison; ``relative_compute`` is absent where the inputs differ in size."""

    relative_compute: float | None
    relative_work: float


class PaceComparison(Figures, frozen=True):
    """How ranks are compared; ``paces`` are by rank."""

    paces: Mapping[int, Pace]
    steps: Annotated[tuple[int, ...], Doc("The marked steps; empty for whole windows.")]
    kernels: Annotated[int, Doc("How many different kernels are compared.")]
    without_communication: Annotated[
        bool, Doc("Whether only their runs without communication beside them are compared.")
    ]
    sizes_differ: Annotated[
        bool, Doc("Whether the inputs of the ranks differ in size, so that only kernels of the optimizer are compared.")
    ]

    def sentence(self) -> str:
        """What is compared, in words."""
        if self.sizes_differ:
            return (
                "The inputs of the ranks differ in size: kernels of one grid need not do the same. Relative compute "
                f"compares {self.kernels} kernels of the optimizer alone: the fastest rank's time over a rank's own. "
                "Relative work is the time of all kernels at the pace of the fastest rank, 1 for the least."
            )
        beside = "while the device did not communicate" if self.without_communication else "also beside communication"
        return (
            f"Relative compute compares the medians of {self.kernels} kernels that all ranks ran equally often, "
            f"{beside}: the fastest rank's time over a rank's own. Relative work is how much a rank has to compute, 1 "
            "for the least."
        )


def compare_paces(kernels: Mapping[int, KernelMedians]) -> PaceComparison | None:
    """Compare ranks over the kernels that all of them have; None where there are none, or no step in common."""
    ranks = list(kernels.values())
    steps = common_steps(own.steps for own in ranks)
    common = reduce(np.intersect1d, (own.keys for own in ranks)) if ranks else np.zeros(0, np.int64)
    if len(ranks) == 1 or not steps or not len(common):
        return None
    columns = [np.searchsorted(own.keys, common) for own in ranks]
    calls = np.stack([own.calls[column] / len(own.steps) for own, column in zip(ranks, columns, strict=True)])
    time = calls * np.stack([own.median_ns[column] for own, column in zip(ranks, columns, strict=True)])
    # Kernels of one name and grid may differ in what they do; called equally often, they are the same mixture.
    chosen = (calls == calls[0]).all(axis=0)
    if not chosen.any():
        return None
    is_resized = _differ_in_size(ranks)
    if is_resized:
        chosen &= ranks[0].of_parameters[columns[0]]
    alone = chosen & np.all([own.is_alone[column] for own, column in zip(ranks, columns, strict=True)], axis=0)
    is_alone = bool(alone.any())
    chosen = alone if is_alone else chosen
    times = (time * chosen).sum(axis=1)
    paces = times.min() / times if times.all() else None
    if is_resized:
        whole = np.array([float((own.calls * own.median_ns).sum() + own.other_ns) / len(own.steps) for own in ranks])
        work = whole * (1.0 if paces is None else paces)
    else:
        work = _work_at_the_fastest(ranks)
    if not work.all() or (paces is None and not is_resized):
        return None
    by_rank = {
        rank: Pace(None if paces is None else float(paces[row]), float(work[row] / work.min()))
        for row, rank in enumerate(kernels)
    }
    numbers = tuple(step for step in steps if step != ABSENT)
    return PaceComparison(by_rank, numbers, int(chosen.sum()), is_alone, is_resized)


def _work_at_the_fastest(ranks: Sequence[KernelMedians]) -> Float64:
    least: dict[int, int] = {}
    for own in ranks:
        for key, time_ns in zip(own.keys.tolist(), own.median_ns.tolist(), strict=True):
            least[key] = min(time_ns, least.get(key, time_ns))
    return np.array(
        [
            ((own.calls * np.array([least[key] for key in own.keys.tolist()])).sum() + own.other_ns) / len(own.steps)
            for own in ranks
        ]
    )


def _differ_in_size(ranks: Sequence[KernelMedians]) -> bool:
    first, *others = [_launches(own) for own in ranks]
    common = {
        name for name in first if all(sum(own.get(name, {}).values()) == sum(first[name].values()) for own in others)
    }
    resized = [name for name in common if any(own[name] != first[name] for own in others)]
    time = [own.calls * own.median_ns for own in ranks]
    return all(
        own_time[np.isin(own.names, resized)].sum() >= _RESIZED * own_time.sum()
        for own, own_time in zip(ranks, time, strict=True)
    )


def _launches(kernels: KernelMedians) -> dict[int, dict[int, float]]:
    grids: dict[int, dict[int, float]] = {}
    calls = (kernels.calls / len(kernels.steps)).tolist()
    for key, name, count in zip(kernels.keys.tolist(), kernels.names.tolist(), calls, strict=True):
        grids.setdefault(name, {})[key] = count
    return grids


class _Waits(Figures, frozen=True):
    """The waits of one rank, in nanoseconds; ``number`` is negative where the rank is not known."""

    number: int
    wait: int
    caused: float
    caused_in: Mapping[int, float]
    wait_us = InUnit("wait", NS_PER_US, "How long it waited for others.")
    caused_wait_us = InUnit("caused", NS_PER_US, "How long the other ranks waited for it, the mean of them.")

    @figure
    def rank(self) -> int | None:
        """The rank."""
        return self.number if self.number >= 0 else None

    @property
    def excess_wait(self) -> float:
        """The wait that it caused beyond what it waited itself."""
        return self.caused - self.wait


class RankWait(_Waits, frozen=True):
    """One rank in one group; ``excess`` is how much longer than the mean of the others it took, by part."""

    communication: int
    came_last: Annotated[int, Doc("In how many operations it arrived last.")]
    reason: Annotated[str | None, Doc("Why it came last, in words; None where the trace does not show it.")] = None
    excess: Mapping[str, float] | None = None
    why: Why = Why.UNKNOWN
    communication_us = InUnit("communication", NS_PER_US, "How long its operations took.")

    @figure
    def excess_us(self) -> dict[str, float] | None:
        """How much longer than the mean of the others it took, by part; None where it caused no significant wait."""
        return None if self.excess is None else {part: ns / NS_PER_US for part, ns in self.excess.items()}


class GroupWait(Figures, frozen=True):
    """The waits in one group."""

    group: Annotated[str | None, Doc("Its name.")]
    description: Annotated[str | None, Doc("What the framework calls it.")]
    axis: Annotated[str | None, Doc("The axis of parallelism.")]
    operations: Annotated[int, Doc("How many operations were matched.")]
    pipeline: Annotated[bool, Doc("Whether its ranks are stages of one pipeline, which wait for each other by design.")]
    ranks: Annotated[tuple[RankWait, ...], Doc("Each rank.")]

    @figure
    def straggler(self) -> int | None:
        """The rank that caused the longest wait."""
        return self.slowest.rank

    @figure
    def caused_wait_us(self) -> float:
        """That wait."""
        return self.slowest.caused_wait_us

    @property
    def label(self) -> str:
        """What tables call it."""
        return self.axis or self.group or "not stated"

    @property
    def slowest(self) -> RankWait:
        """The rank that caused the longest wait."""
        return max(self.ranks, key=lambda rank: (rank.caused, -rank.number))


class StepWait(Figures, frozen=True):
    """The wait that a rank caused in a step."""

    step: Annotated[int | None, Doc("Its number; None where steps are not marked.")]
    us: Annotated[float, Doc("The wait.")]


class RankPace(_Waits, frozen=True):
    """One rank over all groups but those of a pipeline's stages."""

    compute: int
    relative_compute: Annotated[
        float | None,
        Doc(
            "The fastest rank's time for the same kernels over this rank's; at most 1. None where inputs differ in "
            "size, and no kernel of the optimizer can be compared."
        ),
    ]
    relative_work: Annotated[float | None, Doc("This rank's work over that of the rank with the least; at least 1.")]
    compute_us = InUnit("compute", NS_PER_US, "Its compute time in the whole window.")

    @figure
    def caused_wait_by_step(self) -> list[StepWait]:
        """The wait that it caused in each step."""
        steps = sorted(self.caused_in.items())
        return [StepWait(None if step == ABSENT else step, caused / NS_PER_US) for step, caused in steps]


def _why(row: tuple[GroupWait, RankWait, Pace | None]) -> str | None:
    group, rank, _ = row
    if group.pipeline:
        return "pipeline order" if rank.came_last else None
    return None if rank.excess is None else rank.reason or "not shown by the trace"


class Stragglers(Result, frozen=True):
    """``results.stragglers``: which rank makes the others wait, and why."""

    straggler: Annotated[
        int | None,
        Doc("The rank that caused most waiting beyond its own; None where that is below ``significant_us``."),
    ]
    significant: float
    groups: Annotated[Sequence[GroupWait], Doc("Each group, the one with the longest caused wait first.")]
    ranks: Annotated[Sequence[RankPace], Doc("Each rank.")]
    compared: Annotated[PaceComparison | None, Doc("How ranks are compared; None where they cannot be.")]
    significant_us = InUnit(
        "significant", NS_PER_US, "The wait that makes a rank a straggler: a hundredth of the time."
    )

    TABLES = (
        Table(
            "Stragglers",
            "",
            (
                Column("Group", lambda row: row[0].label),
                Column("Rank", lambda row: "unknown" if row[1].rank is None else str(row[1].rank)),
                Column("Comm. (ms)", lambda row: row[1].communication / NS_PER_MS, None, 2),
                Column("Wait (ms)", lambda row: row[1].wait / NS_PER_MS, None, 2),
                Column("Wait caused (ms)", lambda row: row[1].caused / NS_PER_MS, None, 2),
                Column("Last arrivals", lambda row: row[1].came_last),
                Column("Relative compute", lambda row: row[2].relative_compute if row[2] else None, None, 3),
                Column("Relative work", lambda row: row[2].relative_work if row[2] else None, None, 3),
                Column("Reason", _why),
            ),
        ),
    )

    def groups_of_ranks(self) -> tuple[str, Mapping[int, str]]:
        """The data-parallel group of each rank: its ranks do the same work on other data."""
        replicas = [group for group in self.groups if group.axis == "DP"]
        labels = {rank.number: f"of rank {group.ranks[0].number}" for group in replicas for rank in group.ranks}
        return "data-parallel group", dict(sorted(labels.items())) if len(replicas) > 1 else {}

    def sections(self) -> tuple[Section, ...]:
        """A table of groups and ranks."""
        paces = self.compared.paces if self.compared else {}
        rows = [(group, rank, paces.get(rank.number)) for group in self.groups for rank in group.ranks]
        return (self.TABLES[0].section(rows, (self._verdict(), *self._notes()), most=MOST_ROWS),)

    def _notes(self) -> list[str]:
        notes = ["A rank's wait is the time that an operation took longer on it than on the rank that arrived last."]
        stages = sorted({group.label for group in self.groups if group.pipeline})
        if stages:
            notes.append(
                f"Ranks of the group {', '.join(stages)} are stages of a pipeline: they send to each other, and wait "
                "for each other by the order of their passes, so that no rank is blamed for these waits. The pipeline "
                "bubble (`--only pipeline_bubble`) measures them."
            )
        if self.compared is None:
            notes.append("Relative compute: n/a, because the ranks have no steps or no kernels in common.")
            return notes
        steps = self.compared.steps
        over = f"steps {format_ranges(steps)}" if steps else "whole windows, because no step is marked"
        notes.append(f"{self.compared.sentence()} Over {over}.")
        return notes

    def _verdict(self) -> str:
        limit = f"{self.significant / NS_PER_MS:.2f} ms or more"
        if all(group.pipeline for group in self.groups):
            return "No straggler is named: all waits are between the stages of a pipeline."
        if self.straggler is None:
            slowest = max(self.ranks, key=lambda rank: rank.caused)
            if slowest.caused < self.significant:
                return f"No straggler: no rank caused a wait of {limit}."
            return f"No straggler: no rank caused a wait of {limit} beyond its own waits; ranks come last by turns."
        caused = next(rank.caused for rank in self.ranks if rank.number == self.straggler)
        blamed = (group for group in self.groups if not group.pipeline)
        group = max(blamed, key=lambda group: group.slowest.caused if group.straggler == self.straggler else -1)
        reason = next(rank.reason for rank in group.ranks if rank.number == self.straggler)
        why = f" Reason: {reason}." if reason else ""
        return f"Straggler: rank {self.straggler}, which caused a wait of {caused / NS_PER_MS:.2f} ms.{why}"


def analyze(partials: Sequence[tuple[RankCalls, ...]]) -> Stragglers:
    """Find which ranks waited, and for which; MissingInput where no two ranks made the same collectives."""
    longest = max((part.span_ns for partial in partials for part in partial), default=None)
    if longest is None:
        raise NoDevice("the traces contain no GPU events")
    significant = NEGLIGIBLE * longest
    members = _Members(partials)
    waits = (
        _find_waits(key, calls, members) for key, calls in calls_of_groups(partials).items() if key.sender == ABSENT
    )
    groups = [members.with_reasons(group, significant) for group in waits if group is not None]
    groups.sort(key=lambda group: (group.pipeline, -group.slowest.caused, group.group or ""))
    if not groups:
        raise MissingInput("needs the traces of two ranks or more that made collectives together")
    ranks = members.over_all(groups)
    slowest = max(ranks, key=lambda rank: (rank.excess_wait, -rank.number))
    return Stragglers(
        slowest.rank if slowest.excess_wait >= significant else None, significant, groups, ranks, members.comparison
    )


def _find_waits(key: GroupKey, calls: Mapping[int, GroupCalls], members: _Members) -> GroupWait | None:
    if len(calls) <= 1:
        return None
    matched = match(calls)
    synchronises = np.array([kind.operation in (*SYNCHRONISING, "") for kind in matched.kinds], np.bool_)
    chosen = synchronises[matched.kind] if len(matched.kind) else np.zeros(0, np.bool_)
    if members.mark_steps(calls):
        chosen = chosen & (matched.step != ABSENT)
    if not chosen.any():
        return None
    last, transfers_ns = matched.last[chosen], matched.transfer_ns[chosen]
    # Sums of waits by sums of durations: the waits themselves would have to be read once more.
    caused = (matched.total_ns[chosen] - len(matched.ranks) * transfers_ns) / (len(matched.ranks) - 1)
    first = next(iter(calls.values()))
    communication = matched.duration_ns[:, chosen].sum(axis=1)
    of_step = matched.step[chosen]
    ranks = []
    for row, rank in enumerate(matched.ranks):
        is_last, waited = last == row, int(communication[row] - transfers_ns.sum())
        caused_in = {step: float(caused[is_last & (of_step == step)].sum()) for step in distinct(of_step)}
        of_rank = int(communication[row]), int(is_last.sum())
        ranks.append(RankWait(rank, waited, float(caused[is_last].sum()), caused_in, *of_rank))
    return GroupWait(
        group=key.name or None,
        description=first.description or None,
        axis=first.role or None,
        operations=int(chosen.sum()),
        pipeline=members.are_stages(calls, first.role),
        ranks=tuple(ranks),
    )


class _Members:
    """What the ranks of a job sent besides their operations; of several runs of one rank the first one counts."""

    def __init__(self, partials: Sequence[tuple[RankCalls, ...]]) -> None:
        self._transferring: set[int] = set()
        self._pairs: set[tuple[int, int]] = set()
        self._compute_ns: dict[int, int] = defaultdict(int)
        windows: dict[int, list[tuple[int, RankCalls]]] = defaultdict(list)
        for part, rank, run, moment, _ in number_ranks_and_runs(partials):
            if run:
                continue
            self._compute_ns[rank] = max(self._compute_ns[rank], part.compute)
            if part.transfers:
                self._transferring.add(rank)
            self._pairs.update(
                (calls.key.sender, calls.key.receiver) for calls in part.groups if calls.key.sender != ABSENT
            )
            windows[rank].append((moment, replace(part, groups=())))
        ordered = {rank: [part for _, part in sorted(own, key=lambda each: each[0])] for rank, own in windows.items()}
        by_rank = dict(sorted(ordered.items()))
        kernels = {rank: reduce(join_windows, (part.kernels for part in own)) for rank, own in by_rank.items()}
        self.comparison = compare_paces({rank: own for rank, own in kernels.items() if own is not None})
        profiles = {rank: reduce(join_profiles, (part.profile for part in own)) for rank, own in by_rank.items()}
        self._profiles: dict[int, StepProfile] = {rank: own for rank, own in profiles.items() if own is not None}

    def are_stages(self, members: Iterable[int], role: str) -> bool:
        ranks = set(members)
        if not ranks & self._transferring or role not in _ROLES_OF_STAGES:
            return False
        # Transfers that a framework batches do not state their peers.
        return role == "PP" or not self._pairs or any(ranks.issuperset(pair) for pair in self._pairs)

    def mark_steps(self, members: Iterable[int]) -> bool:
        profiles = [self._profiles.get(rank) for rank in members]
        return all(profile is not None and ABSENT not in profile.steps for profile in profiles)

    def with_reasons(self, group: GroupWait, significant: float) -> GroupWait:
        last = {rank.number for rank in group.ranks if rank.excess_wait >= significant}
        profiles = {rank.number: self._profiles[rank.number] for rank in group.ranks if rank.number in self._profiles}
        steps = common_steps(profile.steps for profile in profiles.values())
        if group.pipeline or not last or not steps or len(profiles) <= 1:
            return group
        parts = {rank: own.parts[:, np.isin(own.steps, steps)].sum(axis=1) for rank, own in profiles.items()}
        every = self.comparison.paces if self.comparison else {}
        paces = {rank: every[rank] for rank in profiles} if profiles.keys() <= every.keys() else {}
        ranks = list(group.ranks)
        for index, rank in enumerate(ranks):
            if rank.number in last & profiles.keys():
                why, reason, excess = _find_reason(rank.number, parts, paces, significant)
                ranks[index] = replace(rank, why=why, reason=reason, excess=excess)
        return replace(group, ranks=tuple(ranks))

    def over_all(self, groups: Sequence[GroupWait]) -> list[RankPace]:
        waits: dict[int, list[RankWait]] = {rank.number: [] for group in groups for rank in group.ranks}
        for group in groups:
            for wait in () if group.pipeline else group.ranks:
                waits[wait.number].append(wait)
        ranks = []
        for rank, own in sorted(waits.items()):
            caused_in: dict[int, float] = defaultdict(float)
            for wait in own:
                for step, ns in wait.caused_in.items():
                    caused_in[step] += ns
            pace = self.comparison.paces.get(rank) if self.comparison else None
            ranks.append(
                RankPace(
                    number=rank,
                    caused=sum(wait.caused for wait in own),
                    wait=sum(wait.wait for wait in own),
                    compute=self._compute_ns[rank],
                    relative_compute=pace.relative_compute if pace else None,
                    relative_work=pace.relative_work if pace else None,
                    caused_in=dict(caused_in),
                )
            )
        return ranks


def _find_reason(
    rank: int, parts_ns: Mapping[int, Int64], paces: Mapping[int, Pace], significant: float
) -> tuple[Why, str | None, dict[str, float]]:
    """Why a rank came last, in words, and how much longer than the mean of the others each of PARTS took.

    A part that is longer by less than ``significant`` nanoseconds explains nothing.
    """
    own, others = parts_ns[rank], [parts_ns[peer] for peer in parts_ns if peer != rank]
    slower = more_work = 0.0
    if paces:
        peers = [paces[peer] for peer in parts_ns if peer != rank]
        times = [1 / (pace.relative_compute or 1.0) for pace in peers]
        slower = 1 / (paces[rank].relative_compute or 1.0) / (fsum(times) / len(times)) - 1
        more_work = paces[rank].relative_work / (fsum(pace.relative_work for pace in peers) / len(peers)) - 1
    excess = dict(zip(PARTS, (own - np.mean(others, axis=0)).tolist(), strict=True))
    candidates = {part: ns for part, ns in excess.items() if part != "communication" and ns > 0}
    total = sum(candidates.values())
    part = max(candidates, key=lambda name: candidates[name], default=None)
    if part is None or candidates[part] < max(total / 2, significant):
        return Why.UNKNOWN, None, excess
    if part != "compute":
        return *_REASONS[part], excess
    if max(more_work, slower) < NEGLIGIBLE:
        why, how = Why.WORK, ", though the compared kernels are as many and as fast"
    elif more_work > slower:
        why, how = Why.WORK, f": {percent(more_work):.0f} % more work"
    else:
        why, how = Why.DEVICE, f": slower (the same kernels take {percent(slower):.0f} % longer)"
    return why, f"its device computed longer{how}", excess
