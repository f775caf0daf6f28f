"""Which rank's device needs longer for the same work, from the steps that were timed on the devices.

The optimizer's update holds no exchange, and neither does the forward pass of a replica. The ratio of a rank's median
to the median of the other ranks is the pace of its device, where both took in the same work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from perfscope.analyzers.late_ranks.lateness import Cause, Lateness
from perfscope.analyzers.shared.gpu_steps import find_device_ranks, ranks_on_gpu
from perfscope.tables.columns import present
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps

#: Fewer probes of a rank say nothing.
_FEWEST_PROBES = 5
#: A device that needs so much longer is slow.
_SLOW = 1.05
#: A clock that is lower by this ratio is lower.
_LOWER_CLOCK = 0.98


@dataclass(frozen=True, slots=True)
class DevicePace:
    """A rank's device in the steps that were timed on it, medians in nanoseconds.

    Attributes:
        rank: The rank.
        probes: Timed steps.
        forward_ns: Forward passes; absent where their ends were not seen.
        backward_ns: Backward passes and exchanges.
        update_ns: The optimizer.
        relative_forward: ``forward_ns`` over the median of the other ranks; absent where it may hold an exchange.
        relative_update: The same of the optimizer.
        clock_mhz: Clock of its multiprocessors; absent without samples.
    """

    rank: int
    probes: int
    forward_ns: int | None
    backward_ns: int
    update_ns: int
    relative_forward: float | None = None
    relative_update: float | None = None
    clock_mhz: int | None = None

    @property
    def ratio(self) -> float:
        """How much longer its device needs for the same work: the larger ratio."""
        return max(self.relative_forward or 1.0, self.relative_update or 1.0)


def compare_devices(tables: Sequence[Steps], run: Run) -> tuple[DevicePace, ...]:
    """The pace of each rank's device; empty where fewer than two were timed."""
    timed = [table for table in tables if len(table.probes) >= _FEWEST_PROBES]
    if len(timed) < 2:  # noqa: PLR2004 - a pair
        return ()
    clocks = _median_clocks(run)
    medians = {table.rank: _medians(table) for table in timed}
    paces = []
    for rank, (forward_ns, backward_ns, update_ns) in medians.items():
        peers = [values for peer, values in medians.items() if peer != rank]
        is_replica = getattr(run.setups.get(rank), "ddp", None) is not None
        paces.append(
            DevicePace(
                rank=rank,
                probes=next(len(table.probes) for table in timed if table.rank == rank),
                forward_ns=forward_ns,
                backward_ns=backward_ns,
                update_ns=update_ns,
                relative_forward=_ratio(forward_ns, [values[0] for values in peers]) if is_replica else None,
                relative_update=_ratio(update_ns, [values[2] for values in peers]),
                clock_mhz=clocks.get(rank),
            )
        )
    return tuple(paces)


def find_slow_devices(paces: Sequence[DevicePace], tables: Sequence[Steps]) -> list[Lateness]:
    """The ranks whose devices need longer, with what that costs in the steps of the run."""
    work = {table.rank: _work(table) for table in tables}
    slow = []
    for pace in paces:
        peers = [peer for peer in paces if peer.rank != pace.rank]
        if pace.ratio < _SLOW or not peers:
            continue
        steps = next(table for table in tables if table.rank == pace.rank)
        own_ns = (pace.forward_ns or 0) + pace.backward_ns + pace.update_ns
        cost_ns = round(own_ns * (1 - 1 / pace.ratio) * len(steps))
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


def _explain(pace: DevicePace, peers: Sequence[DevicePace], work: Mapping[int, float | None]) -> tuple[Cause, str]:
    own, most = work[pace.rank], [value for peer in peers if (value := work[peer.rank]) is not None]
    if own is not None and most and own > _SLOW * median(most):
        return Cause.WORK, f"{own / median(most):.2f} times the work of the others"
    clocks = [peer.clock_mhz for peer in peers if peer.clock_mhz is not None]
    longer = f"the same work takes {pace.ratio:.2f} times as long on its GPU"
    if pace.clock_mhz is not None and clocks:
        usual = median(clocks)
        if pace.clock_mhz < _LOWER_CLOCK * usual:
            return Cause.CLOCK, f"{longer}, at {pace.clock_mhz} MHz instead of {usual:.0f} MHz"
        return Cause.DEVICE, f"{longer}, at the same clock, as where another process uses it"
    return Cause.DEVICE, longer


def _medians(table: Steps) -> tuple[int | None, int, int]:
    forwards = [probe.forward_ns for probe in table.probes if probe.forward_ns is not None]
    return (
        round(median(forwards)) if len(forwards) >= _FEWEST_PROBES else None,
        round(median(probe.backward_ns for probe in table.probes)),
        round(median(probe.update_ns for probe in table.probes)),
    )


def _ratio(own: int | None, peers: Sequence[int | None]) -> float | None:
    values = [value for value in peers if value]
    return own / median(values) if own and values else None


def _work(table: Steps) -> float | None:
    for column in (table.tokens, table.samples, table.micro_batches):
        if present(column).any():
            return float(np.mean(column.compressed()))
    return None


def _median_clocks(run: Run) -> dict[int, int]:
    """The median clock of each rank's GPU over the samples in which it worked."""
    clocks = {}
    ranks_by_device = find_device_ranks(run.ranks)
    for gpu in run.gpus:
        works = np.ma.filled(gpu.util_percent, 0) > 0
        clock = gpu.sm_clock_mhz[works]
        for rank in ranks_on_gpu(gpu, ranks_by_device):
            if present(clock).any():
                clocks[rank] = round(float(np.median(clock.compressed())))
    return clocks
