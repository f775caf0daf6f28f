"""Which rank's device needs longer for the same work, from the steps that were timed on the devices.

The optimizer's update holds no exchange, and neither does the forward pass of a replica. The ratio of a rank's median
to the median of the other ranks is the pace of its device, where both took in the same work. A device whose host comes
late waits for each kernel's launch, and then it is the host that takes longer: such times say nothing of the device.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TypeAlias

import numpy as np

from perfscope.analyzers.late_ranks.lateness import Cause, Lateness
from perfscope.analyzers.late_ranks.stage_pace import SLOW_STAGE, compare_stages
from perfscope.analyzers.shared.gpu_steps import find_device_ranks, ranks_on_gpu
from perfscope.analyzers.shared.throttle_causes import CAUSES
from perfscope.tables.columns import Float64, present
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps

#: Of each probe, a time on the device, and for how long of it the device may have waited for the host.
_Times: TypeAlias = "Sequence[tuple[int | None, int | None]]"

#: Fewer probes of a rank say nothing.
_FEWEST_PROBES = 5
#: A device that needs so much longer is slow.
_SLOW = 1.05
#: Sharded modules take up to 15 % longer while a collective waits for another rank beside them.
_SLOW_UNITS = 1.25
#: A device that another process takes from time to time needs longer in some probes only: their mean is compared, ...
_SLOW_AT_TIMES = 1.2
#: ... without so many of the longest.
_CHANCE = 1
#: Times that spread by this share are steady,
_STEADY = 0.02
#: ... and launches that spread more by this ratio are not what they follow.
_BEYOND_LAUNCHES = 4
#: A device that waits for launches for at most this part of a time spends it with work.
_MOST_OF_LAUNCHES = 0.5
#: A clock that is lower by this ratio is lower.
_LOWER_CLOCK = 0.98
#: From this stage of ZeRO on a forward pass gathers parameters.
_FIRST_SHARDED_STAGE = 3


@dataclass(frozen=True, slots=True)
class DevicePace:
    """A rank's device in the steps that were timed on it, medians in nanoseconds; what is not of passes is of probes.

    Attributes:
        rank: The rank.
        probes: Probed steps, which are timed on the device but for the passes of a pipeline.
        forward_ns: Forward passes; absent where their ends were not seen.
        backward_ns: Backward passes and exchanges.
        update_ns: The optimizer.
        relative_forward: ``forward_ns`` over the median of the other ranks; absent where it may hold an exchange, or
            the device waited for the host.
        relative_update: The same of the optimizer, by parameter where ranks are stages of a pipeline.
        relative_passes: Of a stage of a pipeline, the time of its passes by parameter over that of the others; absent
            where it may be the host that takes so long.
        passes_ns: Of a stage, its passes in a step, in ``passes_steps`` steps.
        clock_mhz: Clock of its multiprocessors; absent without samples.
        throttled: Why NVML says that this is not higher, most of the time; empty for nothing.
        limit: From which ratio on it is slow, ``forward_limit`` by its forward passes, ``passes_limit`` by a stage's.
        compares_units: Whether ``relative_forward`` is that of sharded modules, of the first micro-batch alone.
        knows_launches: Whether it was recorded if the device waited for the host.
        is_behind: Whether the device comes to the optimizer later than the host: work is what it spends its time with.
    """

    rank: int
    probes: int
    forward_ns: int | None
    backward_ns: int | None
    update_ns: int | None
    relative_forward: float | None = None
    relative_update: float | None = None
    relative_passes: float | None = None
    passes_ns: int | None = None
    passes_steps: int | None = None
    clock_mhz: int | None = None
    throttled: str = ""
    limit: float = _SLOW
    forward_limit: float = _SLOW
    passes_limit: float = SLOW_STAGE
    compares_units: bool = False
    knows_launches: bool = False
    is_behind: bool = False

    @property
    def is_compared(self) -> bool:
        """Whether anything of it is compared with the others."""
        return (self.relative_forward, self.relative_update, self.relative_passes) != (None, None, None)

    @property
    def ratio(self) -> float:
        """How much longer its device needs for the same work: the larger ratio."""
        return max(self.relative_forward or 1.0, self.relative_update or 1.0, self.relative_passes or 1.0)

    @property
    def is_slow(self) -> bool:
        """Whether its device is slow: forward passes that are faster than the others' say that it is not."""
        is_contradicted = self.relative_forward is not None and self.relative_forward < 1 / _SLOW
        is_longer = self._has_slow_forward or (self.relative_update or 1.0) >= self.limit
        return (is_longer and not is_contradicted) or self._has_slow_passes

    @property
    def excess_ns(self) -> int:
        """What it costs in a step: what was compared took longer, and backward passes are as slow as forward passes."""
        forward, update = self.relative_forward or 1.0, self.relative_update or 1.0
        if self.compares_units and not self._has_slow_forward:
            forward = 1.0
        passes_ns = (self.forward_ns or 0) + (self.backward_ns or 0)
        if self._has_slow_passes:
            passes_ns, forward = self.passes_ns or 0, self.relative_passes or 1.0
        return round(passes_ns * (1 - 1 / max(forward, 1)) + (self.update_ns or 0) * (1 - 1 / max(update, 1)))

    @property
    def _has_slow_forward(self) -> bool:
        return (self.relative_forward or 1.0) >= self.forward_limit

    @property
    def _has_slow_passes(self) -> bool:
        return (self.relative_passes or 1.0) >= self.passes_limit


def compare_devices(tables: Sequence[Steps], run: Run, *, has_stages: bool) -> tuple[DevicePace, ...]:
    """The pace of each rank's device; empty where fewer than two were timed, in probes or by passes of a pipeline."""
    stages = compare_stages(run) if has_stages else {}
    clocks = _read_clocks(run)
    probed = [table for table in tables if len(table.probes) >= _FEWEST_PROBES]
    paces = {pace.rank: pace for pace in _compare_probes(probed, run, has_stages=has_stages)}
    for table in tables:
        pace, stage = paces.get(table.rank), stages.get(table.rank)
        is_ahead = pace is not None and _is_ahead(table)
        if stage is not None and (pace is not None or stage.least is not None):
            pace = replace(
                pace or DevicePace(table.rank, len(table.probes), None, None, None, knows_launches=True),
                relative_passes=stage.relative if stage.is_of_device(is_ahead=is_ahead) else None,
                passes_ns=stage.passes_ns,
                passes_steps=stage.steps,
                passes_limit=stage.limit,
            )
        if pace is not None:
            clock_mhz, throttled = clocks.get(table.rank, (None, ""))
            paces[table.rank] = replace(pace, clock_mhz=clock_mhz, throttled=throttled)
    return tuple(paces[table.rank] for table in tables if table.rank in paces)


def _compare_probes(tables: Sequence[Steps], run: Run, *, has_stages: bool) -> list[DevicePace]:
    """The pace of each rank's device in probed steps; empty where fewer than two have any."""
    if len(tables) < 2:  # noqa: PLR2004 - a pair
        return []
    medians = {table.rank: _medians(table) for table in tables}
    forwards = {table.rank: [(probe.forward_ns, probe.forward_launch_ns) for probe in table.probes] for table in tables}
    units = {table.rank: [(probe.units_ns, probe.units_launch_ns) for probe in table.probes] for table in tables}
    updates = {table.rank: _updates(table) for table in tables}
    sizes = {model.rank: model.trainable for model in run.models} if has_stages else dict.fromkeys(medians, 1)
    limit = SLOW_STAGE if has_stages else _SLOW
    paces = []
    for table in tables:
        rank = table.rank
        forward_ns, backward_ns, update_ns = medians[rank]
        peers = [peer for peer in medians if peer != rank]
        relative_forward, relative_update = None, None
        is_replica = _is_replica(run, rank, has_stages=has_stages)
        if is_replica:
            relative_forward = _relative(forwards[rank], [(forwards[peer], 1.0) for peer in peers], limit)
        elif not has_stages:
            relative_forward = _relative(units[rank], [(units[peer], 1.0) for peer in peers], _SLOW_UNITS)
        if all(sizes.get(peer) for peer in medians):
            scaled = [(updates[peer], sizes[rank] / sizes[peer]) for peer in peers]
            relative_update = _relative(updates[rank], scaled, limit)
        paces.append(
            DevicePace(
                rank=rank,
                probes=len(table.probes),
                forward_ns=forward_ns,
                backward_ns=backward_ns,
                update_ns=update_ns,
                relative_forward=relative_forward,
                relative_update=relative_update,
                limit=limit,
                forward_limit=limit if is_replica else _SLOW_UNITS,
                compares_units=not is_replica,
                knows_launches=any(probe.update_launch_ns is not None for probe in table.probes),
                is_behind=_is_ahead(table) and not has_stages,
            )
        )
    return paces


def _updates(table: Steps) -> _Times:
    return [(probe.update_ns, probe.update_launch_ns) for probe in table.probes]


def _is_ahead(table: Steps) -> bool:
    """Whether the host launches the optimizer before the device comes to it."""
    return _times_ahead(_present(_updates(table))) is not None


def _is_replica(run: Run, rank: int, *, has_stages: bool) -> bool:
    """Whether a rank's forward pass holds no exchange: all ranks have whole models of the same size."""
    axes = {axis for identity in run.ranks for axis in identity.parallel if axis != "dp"}
    if has_stages or any(len({identity.parallel.get(axis) for identity in run.ranks}) > 1 for axis in axes):
        return False
    setup = run.setups.get(rank)
    stage = None if setup is None else setup.engine.get("zero_optimization.stage")
    return setup is not None and (setup.ddp is not None or (type(stage) is int and stage < _FIRST_SHARDED_STAGE))


def _present(times: _Times) -> list[tuple[int, int]]:
    return [(time_ns, launch_ns or 0) for time_ns, launch_ns in times if time_ns is not None]


def _times_ahead(probed: Sequence[tuple[int, int]]) -> list[int] | None:
    """The times for which the device cannot have waited for the host; None where they are too few to speak for it."""
    ahead = [time_ns for time_ns, launch_ns in probed if not launch_ns]
    return ahead if len(ahead) >= max(_FEWEST_PROBES, len(probed) / 2) else None


def _relative(times: _Times, peers: Sequence[tuple[_Times, float]], limit: float) -> float | None:
    """A rank's median time over that of the others; absent where the host may be what took so long.

    Args:
        times: Of each probe, the time on the device, and for how long of it the device may have waited for the host.
        peers: The times of the other ranks, and how much more work is this rank's.
        limit: What is less is not told from the launches.
    """
    probed = _present(times)
    compared = [(_present(peer), ratio) for peer, ratio in peers]
    compared = [(peer, ratio) for peer, ratio in compared if len(peer) >= _FEWEST_PROBES]
    if len(probed) < _FEWEST_PROBES or not compared:
        return None
    ahead = _times_ahead(probed)
    usual_ns = median(median(time_ns for time_ns, _ in peer) * ratio for peer, ratio in compared)
    if ahead is not None:
        usually = median(ahead) / usual_ns
        mean_ns = median(
            _mean(_times_ahead(peer) or [time_ns for time_ns, _ in peer]) * ratio for peer, ratio in compared
        )
        at_times = _mean(ahead) / mean_ns
        return at_times if usually < limit and at_times >= max(_SLOW_AT_TIMES, limit) else usually
    alike = _times_like_peers(probed, [launch_ns for peer, _ in compared for _, launch_ns in peer])
    if len(alike) >= _FEWEST_PROBES and median(alike) >= limit * usual_ns:
        return median(alike) / usual_ns
    own_ns, launches_ns = np.array(probed, np.float64).T
    if _does_not_follow(own_ns, launches_ns):
        return float(np.median(own_ns)) / usual_ns
    least_ns = own_ns - launches_ns
    least = float(np.median(least_ns)) / usual_ns
    if least < limit:  # what is beyond the others' time even so is no wait: another process uses the device at times
        least = _mean(np.maximum(least_ns, usual_ns).tolist()) / usual_ns
    return least if least >= limit else None


def _times_like_peers(probed: Sequence[tuple[int, int]], launches_ns: Sequence[int]) -> list[int]:
    """The times for which the device can have waited no longer than the others', and for a small part of them.

    A device that takes longer for the same launches waits less for them.
    """
    most_ns = max(launches_ns)
    return [time_ns for time_ns, launch_ns in probed if launch_ns <= min(most_ns, time_ns * _MOST_OF_LAUNCHES)]


def _mean(times_ns: Sequence[float]) -> float:
    """The mean, without what a single event took."""
    return fmean(sorted(times_ns)[:-_CHANCE])


def _does_not_follow(own_ns: Float64, launches_ns: Float64) -> bool:
    """Whether times are steady although the launches are not: what waits for the host varies as the host does."""
    spread_ns, launches_spread_ns = (np.ptp(np.percentile(values, (10, 90))) for values in (own_ns, launches_ns))
    is_steady = spread_ns <= _STEADY * np.median(own_ns)
    return bool(is_steady and launches_spread_ns >= _BEYOND_LAUNCHES * max(spread_ns, 1))


def find_slow_devices(
    paces: Sequence[DevicePace], tables: Sequence[Steps], late_hosts: Container[int | None]
) -> list[Lateness]:
    """The ranks whose devices need longer, with what that costs in the steps of the run.

    Where the host of a rank is late in most steps, and its probes do not say if the device waited for it, nothing is
    said of the device.
    """
    work = {table.rank: _work(table) for table in tables}
    slow = []
    for pace in paces:
        peers = [peer for peer in paces if peer.rank != pace.rank]
        if not peers or (pace.rank in late_hosts and not pace.knows_launches):
            continue
        excess_ns = pace.excess_ns if pace.is_slow else _excess_of_work(pace, peers, work)
        if not excess_ns:
            continue
        steps = next(table for table in tables if table.rank == pace.rank)
        cost_ns = excess_ns * len(steps)
        cause, detail = _explain(pace, peers, work)
        slow.append(
            Lateness(
                rank=pace.rank,
                is_persistent=True,
                steps=len(steps),
                examples=(),
                cost_ns=cost_ns,
                cause=cause,
                cause_ns=cost_ns,
                excess_ns={},
                detail=detail,
            )
        )
    return slow


def _excess_of_work(pace: DevicePace, peers: Sequence[DevicePace], work: Mapping[int, float | None]) -> int:
    """What more work costs in a step where passes hold exchanges, and take equally long on all ranks; 0 for none.

    A device that waits for its host does not take longer for more work.
    """
    own, most = work[pace.rank], [value for peer in peers if (value := work[peer.rank]) is not None]
    is_compared = any(timed.relative_forward is not None and not timed.compares_units for timed in (pace, *peers))
    if is_compared or not pace.is_behind or own is None or not most or own <= _SLOW * median(most):
        return 0
    return round(((pace.forward_ns or 0) + (pace.backward_ns or 0)) * (1 - median(most) / own))


def _explain(pace: DevicePace, peers: Sequence[DevicePace], work: Mapping[int, float | None]) -> tuple[Cause, str]:
    own, most = work[pace.rank], [value for peer in peers if (value := work[peer.rank]) is not None]
    if own is not None and most and own > _SLOW * median(most):
        return Cause.WORK, f"{own / median(most):.2f} times the work of the others"
    clocks = [peer.clock_mhz for peer in peers if peer.clock_mhz is not None]
    what = "its passes take" if pace.ratio == pace.relative_passes else "the same work takes"
    longer = f"{what} {pace.ratio:.2f} times as long on its GPU"
    if pace.clock_mhz is not None and clocks:
        usual = median(clocks)
        if pace.clock_mhz < _LOWER_CLOCK * usual:
            why = f", because of: {pace.throttled}" if pace.throttled else ""
            return Cause.CLOCK, f"{longer}, at {pace.clock_mhz} MHz instead of {usual:.0f} MHz{why}"
        return Cause.DEVICE, f"{longer}, at the same clock, as where another process uses it"
    return Cause.DEVICE, longer


def _medians(table: Steps) -> tuple[int | None, int, int]:
    forwards = [probe.forward_ns for probe in table.probes if probe.forward_ns is not None]
    return (
        round(median(forwards)) if len(forwards) >= _FEWEST_PROBES else None,
        round(median(probe.backward_ns for probe in table.probes)),
        round(median(probe.update_ns for probe in table.probes)),
    )


def _work(table: Steps) -> float | None:
    for column in (table.tokens, table.samples, table.micro_batches):
        if present(column).any():
            return float(np.mean(column.compressed()))
    return None


def _read_clocks(run: Run) -> dict[int, tuple[int, str]]:
    """The median clock of each rank's GPU over the samples in which it worked, and what held that down."""
    clocks = {}
    ranks_by_device = find_device_ranks(run.ranks)
    for gpu in run.gpus:
        works = np.ma.filled(gpu.util_percent, 0) > 0
        clock, bits = gpu.sm_clock_mhz[works], gpu.throttle[works].compressed()
        causes = [name for bit, (name, _) in CAUSES.items() if 2 * np.count_nonzero(bits & bit) > len(bits)]
        for rank in ranks_on_gpu(gpu, ranks_by_device):
            if present(clock).any():
                clocks[rank] = round(float(np.median(clock.compressed()))), " and ".join(causes)
    return clocks
