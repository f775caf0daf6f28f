"""How long the passes of a pipeline's stages take on their devices, beside others that do the same work or like work.

What is compared is the time of a stage's passes over the parameters that are multiplied with (``stage_work``). Passes
are timed on the device, from when their inputs are there, and compared in steps that all ranks timed, with equally many
micro-batches. A slow device is slow in forward and in backward passes. What makes only one of both longer is another
cause: activations that some stages recompute, or an exchange of the loss in the last forward pass.

Stages differ by more than a device does that another process uses now and then. But micro-batches of a stage are alike:
the fastest pass of a step shows what the device does by itself, and the others how much is taken from it. Such a
process may come in the same place of each step, and take the device in one kind of passes alone: there all passes
together are compared so. Where the fastest pass is unknown, the fastest step shows that the device can do better.

A device whose host comes late waits for launches in its passes, and then it is the host that takes longer. For how long
it may have waited at most is recorded: a stage that takes longer even without that has a slow device. But a device can
work most of that time. Layers are alike and launched at an even pace: a device that waits for launches is done soon
after the last one. Where each kind of passes goes on for long after that, as behind a host that waits for its device
ahead of them, a stage that takes longer by more than its launches do has a slow device, too. A host that waits for its
device between launches, as one that reads a loss, seems to launch for as long as that works: such launches are no
measure for those of others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeAlias

from perfscope.analyzers.late_ranks.stage_work import (
    Peers,
    describe_work,
    exchanges_inside,
    find_peers,
    has_replicas,
)
from perfscope.tables.micro_batches import MicroBatches, of_last_attempts
from perfscope.tables.run import Run

#: Fewer steps say nothing.
_FEWEST_STEPS = 5
#: By parameter stages differ by less than this.
SLOW_STAGE = 1.25
#: A collective beside a pass makes that one up to a quarter longer, and all passes of a step by less than this.
_SLOW_AT_TIMES = 1.1
#: Passes whose device may have waited for launches for more than this part of them are bound by these. And launches
#: that take more than this part of the passes may hold waits for the device.
_MOST_OF_LAUNCHES = 0.75
#: What is longer than the launches are by this ratio is longer by more than them.
_BEYOND_LAUNCHES = 1.1
#: Kinds of forward passes, and of backward passes.
_KINDS = ("F", "BIW")

#: A value of each rank's forward passes, and of its backward passes; or one of all its passes.
_Values: TypeAlias = "Mapping[int, tuple[float, ...]]"


@dataclass(frozen=True, slots=True)
class StagePace:
    """The passes of one rank.

    Attributes:
        passes_ns: Of a step, a median.
        steps: In how many steps they were timed and compared.
        relative: By parameter, over the median of other ranks: the smaller ratio of forward and of backward passes, and
            of its replicas and of all stages like its own. Or of all passes by the fastest ones of each step, where
            only that is slow.
        limit: From which ratio on it is slow.
        least: The least ratio that its device can have by itself; None where its waits for launches were not recorded.
    """

    passes_ns: int
    steps: int
    relative: float
    limit: float = SLOW_STAGE
    least: float | None = None

    def is_of_device(self, *, is_ahead: bool) -> bool:
        """Whether ``relative`` is that of its device, and not of its host.

        Args:
            is_ahead: Whether other steps show that the device is behind its host; asked where waits were not recorded.
        """
        return is_ahead if self.least is None else self.relative < self.limit or self.least >= self.limit


class _Passes(NamedTuple):
    """The passes of a rank in a step."""

    together: MicroBatches
    by_kind: tuple[MicroBatches, ...]


#: Of each compared step, the passes of all ranks.
_Steps: TypeAlias = "Sequence[Mapping[int, _Passes]]"


class _Ratios(NamedTuple):
    """The ratio of a rank to others, and the least that its device can have; None where that is unknown."""

    relative: float
    least: float | None

    @property
    def certain(self) -> float:
        return self.relative if self.least is None else min(self.relative, self.least)


def compare_stages(run: Run) -> dict[int, StagePace]:
    """The pace of each rank of a pipeline that can be compared; empty where passes hold exchanges."""
    records = {rank: own for rank, own in of_last_attempts(run.micro_batches).items() if len(own) >= _FEWEST_STEPS}
    work = {} if exchanges_inside(run) else describe_work(run, {rank: own.values() for rank, own in records.items()})
    steps = _common_steps({rank: records[rank] for rank in work})
    if not steps:
        return {}
    units = {rank: own.unit for rank, own in work.items()}
    compared = _by_parameter(steps, units)
    at_times = None if has_replicas(run) and not _is_deepspeed(run) else _AtTimes.of(steps, units, compared)
    paces = {}
    for rank, peers in find_peers(work, {rank: own.together.device for rank, own in steps[0].items()}).items():
        if not peers.replicas and not peers.alike:
            continue
        ratios, limit = compared.ratios(rank, peers), SLOW_STAGE
        if at_times is not None and ratios.relative < SLOW_STAGE:
            ratios, limit = at_times.ratios(rank, peers) or (ratios, limit)
        passes_ns = round(median(step[rank].together.busy_ns for step in steps))
        paces[rank] = StagePace(passes_ns, len(steps), ratios.relative, limit, ratios.least)
    return paces


def _is_deepspeed(run: Run) -> bool:
    return bool(run.setups) and all(setup.engine for setup in run.setups.values())


def _common_steps(records: Mapping[int, Mapping[int, MicroBatches]]) -> _Steps:
    """The steps that are compared; empty where they are too few, or ranks are.

    Where waits for launches are known in enough steps, these are all.
    """
    if len(records) < 2:  # noqa: PLR2004 - a pair
        return []
    steps = []
    for number in sorted(set.intersection(*(set(own) for own in records.values()))):
        step = {
            rank: _Passes(own[number], tuple(own[number].of_kinds(kinds) for kinds in _KINDS))
            for rank, own in records.items()
        }
        forwards = {total.count for own in step.values() for total in own.by_kind[0].totals}
        if len(forwards) == 1 and all(passes.busy_ns for own in step.values() for passes in own.by_kind):
            steps.append(step)
    with_waits = [step for step in steps if _know_waits(step)]
    steps = with_waits if len(with_waits) >= _FEWEST_STEPS else steps
    return steps if len(steps) >= _FEWEST_STEPS else []


def _know_waits(step: Mapping[int, _Passes]) -> bool:
    return all(own.together.worked_ns is not None and own.together.launch_ns is not None for own in step.values())


class _Launches(NamedTuple):
    """The launches of each rank's forward and backward passes.

    Attributes:
        times: What they took, by parameter.
        shares: What they took, as a part of the passes.
        wait_shares: For which part of the passes the device may have waited for them, at most.
    """

    times: _Values
    shares: _Values
    wait_shares: _Values

    def longer(self, rank: int, peers: Sequence[int]) -> float:
        """The largest ratio of a rank's launches to those of another, 1 for less; infinite where they may bind it."""
        others = [self.times[peer] for peer in peers if max(self.shares[peer]) <= _MOST_OF_LAUNCHES]
        if max(self.wait_shares[rank]) > _MOST_OF_LAUNCHES or not others:
            return math.inf
        least = [min(values) for values in zip(*others, strict=True)]
        return max(
            1.0, *(own / other if other else math.inf for own, other in zip(self.times[rank], least, strict=True))
        )


class _Comparison(NamedTuple):
    """What is compared of each rank, of forward and backward passes or of all together.

    Attributes:
        times: The time of its passes, over what it is compared by.
        least_times: The same without what its device may have waited for launches.
        launches: What is known of these; None for nothing: then the above is no more than the times.
    """

    times: _Values
    least_times: _Values
    launches: _Launches | None

    def ratios(self, rank: int, peers: Peers) -> _Ratios:
        """The ratios of a rank to its replicas and to all that are like it, the smaller ones."""
        ratios = [self._ratios(rank, ranks) for ranks in peers if ranks]
        leasts = [least for _, least in ratios if least is not None]
        return _Ratios(min(relative for relative, _ in ratios), min(leasts, default=None))

    def _ratios(self, rank: int, peers: Sequence[int]) -> _Ratios:
        usual = [median(values) for values in zip(*(self.times[peer] for peer in peers), strict=True)]
        relative = min(own / other for own, other in zip(self.times[rank], usual, strict=True))
        if self.launches is None:
            return _Ratios(relative, None)
        if relative >= _BEYOND_LAUNCHES * self.launches.longer(rank, peers):
            return _Ratios(relative, relative)
        return _Ratios(relative, min(own / other for own, other in zip(self.least_times[rank], usual, strict=True)))


class _AtTimes(NamedTuple):
    """Comparisons that show a device which another process uses at times.

    Attributes:
        stretched: All passes of a step over what the device does by itself.
        together: All passes by parameter; asked where only the fastest steps show what the device does by itself.
    """

    stretched: _Comparison
    together: _Comparison | None

    @classmethod
    def of(cls, steps: _Steps, units: Mapping[int, float], compared: _Comparison) -> _AtTimes:
        with_fastest = [step for step in steps if all(own.together.alone_ns for own in step.values())]
        if len(with_fastest) >= _FEWEST_STEPS:
            return cls(_compare(with_fastest, lambda own: own.alone_ns or 1, _all_passes, compared.launches), None)
        fastest = {rank: min(_per_pass(step[rank].together) for step in steps) for rank in units}
        return cls(
            _compare(steps, lambda own: fastest[own.rank] * _count(own), _all_passes, compared.launches),
            _compare(steps, lambda own: units[own.rank], _all_passes, compared.launches),
        )

    def ratios(self, rank: int, peers: Peers) -> tuple[_Ratios, float] | None:
        """The ratios of a rank that is slow at times, and from which on it is; None for others."""
        stretched = self.stretched.ratios(rank, peers)
        if stretched.certain < _SLOW_AT_TIMES:
            return None
        if self.together is None:
            return stretched, _SLOW_AT_TIMES
        together = self.together.ratios(rank, peers)
        return (together, SLOW_STAGE) if together.relative >= SLOW_STAGE else None


def _by_parameter(steps: _Steps, units: Mapping[int, float]) -> _Comparison:
    launches = None
    if all(_know_waits(step) for step in steps):
        launches = _Launches(
            _medians(steps, lambda own: (own.launch_ns or 0) / units[own.rank], _by_kind),
            _medians(steps, lambda own: (own.launch_ns or 0) / own.busy_ns, _by_kind),
            _medians(steps, lambda own: own.wait_share or 0.0, _by_kind),
        )
    return _compare(steps, lambda own: units[own.rank], _by_kind, launches)


def _compare(
    steps: _Steps,
    unit_of: Callable[[MicroBatches], float],
    parts_of: Callable[[_Passes], tuple[MicroBatches, ...]],
    launches: _Launches | None,
) -> _Comparison:
    return _Comparison(
        _medians(steps, lambda own: own.busy_ns / unit_of(own), parts_of),
        _medians(steps, lambda own: (own.worked_ns or 0) / unit_of(own), parts_of),
        launches,
    )


def _medians(
    steps: _Steps,
    value_of: Callable[[MicroBatches], float],
    parts_of: Callable[[_Passes], tuple[MicroBatches, ...]],
) -> _Values:
    values = {rank: [[value_of(part) for part in parts_of(step[rank])] for step in steps] for rank in steps[0]}
    return {rank: tuple(median(column) for column in zip(*own, strict=True)) for rank, own in values.items()}


def _by_kind(passes: _Passes) -> tuple[MicroBatches, ...]:
    return passes.by_kind


def _all_passes(passes: _Passes) -> tuple[MicroBatches, ...]:
    return (passes.together,)


def _per_pass(passes: MicroBatches) -> float:
    return passes.busy_ns / _count(passes)


def _count(passes: MicroBatches) -> int:
    return sum(total.count for total in passes.totals)
