"""Which rank's GPU needs longer for the same work than its replicas, from steps that were timed on the devices.

Replicas hold the same part of the model. The optimizer's update holds no exchange. Neither does the forward pass of a
whole model, nor that of a module that FSDP 2 shards once its weights are there. Where the host launched late the device
waited for it: that time is no work and is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated, TypeAlias

import numpy as np

from perfscope.analyzers.stragglers.lateness import MORE, LateCause, Lateness
from perfscope.measures.gpu_steps import THROTTLING_CAUSES, find_device_ranks, ranks_on_gpu
from perfscope.report import SMALLEST_CHANGE
from perfscope.result import Doc, Figures
from perfscope.tables.columns import present
from perfscope.tables.run import Run
from perfscope.tables.steps import FEWEST_STEPS, Steps

#: Of each probe, a time on the device, and for how long of it the device may have waited for the host.
_Times: TypeAlias = "Sequence[tuple[int | None, int | None]]"

#: Sharded modules take up to 1.12 times as long in clean runs, while a collective waits for another rank.
_SLOW_UNITS = 1.25
#: From this stage of ZeRO on a forward pass gathers parameters.
FIRST_SHARDED_STAGE = 3


class DevicePace(Figures, frozen=True):
    """A rank's device in the probed steps, which are timed on it: medians.

    ``throttled`` is why NVML says that its clock is not higher, most of the time; empty for nothing.
    """

    rank: Annotated[int, Doc("The rank.")]
    probes: Annotated[int, Doc("Probed steps, which are timed on the device.")]
    forward_ns: Annotated[int | None, Doc("Forward passes; None where their ends were not seen.")]
    backward_ns: Annotated[int, Doc("Backward passes and exchanges.")]
    update_ns: Annotated[int, Doc("The optimizer.")]
    relative_forward: Annotated[
        float | None,
        Doc(
            "Forward passes without waits for the host over the median of the ranks that hold the same part of the "
            "model, of FSDP 2 those of the first sharded modules; None where they may hold an exchange, or the device "
            "may have waited for its host."
        ),
    ] = None
    relative_update: Annotated[float | None, Doc("The same of the optimizer.")] = None
    limit: float = MORE
    sm_clock_mhz: Annotated[int | None, Doc("Clock of its multiprocessors; None without samples.")] = None
    throttled: str = ""

    @property
    def is_compared(self) -> bool:
        """Whether anything of it is compared with its replicas."""
        return self.relative_forward is not None or self.relative_update is not None

    @property
    def ratio(self) -> float:
        """How much longer its device needs for the same work: the larger ratio."""
        return max(self.relative_forward or 1.0, self.relative_update or 1.0)

    @property
    def is_slow(self) -> bool:
        """Whether it needs longer by more than replicas differ; not where its forward passes are faster than theirs."""
        forward = self.relative_forward or 1.0
        return forward >= self.limit or (forward >= 1 / MORE and (self.relative_update or 1.0) >= MORE)

    @property
    def excess_ns(self) -> int:
        """What that costs in a step: backward passes are as slow as forward passes."""
        forward, update = self.relative_forward or 1.0, max(self.relative_update or 1.0, 1.0)
        forward = forward if forward >= self.limit else 1.0
        passes_ns = (self.forward_ns or 0) + self.backward_ns
        return round(passes_ns * (1 - 1 / forward) + self.update_ns * (1 - 1 / update))


def compare_devices(
    tables: Sequence[Steps], run: Run, *, has_stages: bool
) -> tuple[tuple[DevicePace, ...], Mapping[str, tuple[int, ...]]]:
    """The pace of each rank's device over its replicas; and by the reason the ranks whose GPUs are not compared."""
    stages = dict.fromkeys((table.rank for table in tables), 0)
    if has_stages:
        stages = {record.rank: record.device for record in run.micro_batches}
        stages |= {rank.rank: rank.parallel["pp"] for rank in run.ranks if "pp" in rank.parallel}
    clocks = _read_clocks(run)
    probed = {table.rank: table.probes for table in tables if len(table.probes) >= FEWEST_STEPS}
    is_whole = {rank: _is_whole_model(run, rank) for rank in probed}
    forwards = {
        rank: [(each.forward_ns, each.forward_launch_ns) for each in own]
        if is_whole[rank]
        else [(each.units_ns, each.units_launch_ns) for each in own]
        for rank, own in probed.items()
    }
    updates = {rank: [(each.update_ns, each.update_launch_ns) for each in own] for rank, own in probed.items()}
    paces, unseen = [], defaultdict(list)
    for rank, own in probed.items():
        peers = [peer for peer in probed if peer != rank and stages.get(peer, -1 - peer) == stages.get(rank)]
        limit = MORE if is_whole[rank] else _SLOW_UNITS
        forward = None if has_stages else _relative(forwards[rank], [forwards[peer] for peer in peers], limit)
        forward_ns = [each.forward_ns for each in own if each.forward_ns is not None]
        pace = DevicePace(
            rank,
            len(own),
            round(median(forward_ns)) if len(forward_ns) >= FEWEST_STEPS else None,
            round(median(each.backward_ns for each in own)),
            round(median(each.update_ns for each in own)),
            forward,
            _relative(updates[rank], [updates[peer] for peer in peers], MORE),
            limit,
            *clocks.get(rank, (None, "")),
        )
        paces.append(pace)
        if not pace.is_compared:
            why = "they waited for launches" if peers else "no other rank holds the same part of the model"
            unseen[why].append(rank)
    with_gpu = {rank.rank for rank in run.ranks if rank.device_type not in (None, "cpu")}
    untimed = [table.rank for table in tables if table.rank in with_gpu and table.rank not in probed]
    if untimed:
        unseen[f"fewer than {FEWEST_STEPS} of their steps were timed"] += untimed
    return tuple(paces), {why: tuple(sorted(with_gpu.intersection(ranks))) for why, ranks in unseen.items()}


def _is_whole_model(run: Run, rank: int) -> bool:
    """Whether a rank's forward pass holds no exchange: all ranks have whole models."""
    axes = {axis for identity in run.ranks for axis in identity.parallel if axis != "dp"}
    if any(len({identity.parallel.get(axis) for identity in run.ranks}) > 1 for axis in axes):
        return False
    setup = run.setups.get(rank)
    stage = None if setup is None else setup.engine.get("zero_optimization.stage")
    return setup is not None and (setup.ddp is not None or (type(stage) is int and stage < FIRST_SHARDED_STAGE))


def _relative(times: _Times, peers: Sequence[_Times], limit: float) -> float | None:
    """The median time for which a device worked over the median time of its replicas.

    Absent where too few times are known, and where the device waited for its host and is not slow without that either.
    """
    own = _present(times)
    compared = [of_peer for peer in peers if len(of_peer := _present(peer)) >= FEWEST_STEPS]
    if len(own) < FEWEST_STEPS or not compared:
        return None
    usual_ns = median(median(time_ns for time_ns, _ in peer) for peer in compared)
    ratio = median(time_ns - wait_ns for time_ns, wait_ns in own) / max(usual_ns, 1)
    waited = median(wait_ns for _, wait_ns in own) > 0
    return None if waited and ratio < limit else ratio


def _present(times: _Times) -> list[tuple[int, int]]:
    return [(time_ns, wait_ns) for time_ns, wait_ns in times if time_ns is not None and wait_ns is not None]


def find_slow_devices(paces: Sequence[DevicePace], tables: Sequence[Steps]) -> list[Lateness]:
    """The ranks whose devices need longer, with what that costs in the steps of the run."""
    work = {table.rank: _work(table) for table in tables}
    slow = []
    for pace in paces:
        excess_ns = pace.excess_ns if pace.is_slow else 0
        if not excess_ns:
            continue
        peers = [peer for peer in paces if peer.rank != pace.rank]
        steps = next(len(table) for table in tables if table.rank == pace.rank)
        own, others = work[pace.rank], [value for peer in peers if (value := work[peer.rank]) is not None]
        more_work = own / median(others) if own is not None and others else 1.0
        cause, detail = LateCause.WORK, f"{more_work:.2f} times the work of the others"
        if more_work <= MORE:
            cause, detail = _explain(pace, peers)
        cost_ns = excess_ns * steps
        slow.append(
            Lateness(
                rank=pace.rank,
                persistent=True,
                steps=steps,
                cost_ns=cost_ns,
                cause=cause,
                cause_ns=cost_ns,
                detail=detail,
            )
        )
    return slow


def _explain(pace: DevicePace, peers: Sequence[DevicePace]) -> tuple[LateCause, str]:
    clocks = [peer.sm_clock_mhz for peer in peers if peer.sm_clock_mhz is not None]
    longer = f"the same work takes {pace.ratio:.2f} times as long on its GPU"
    if pace.sm_clock_mhz is None or not clocks:
        return LateCause.DEVICE, longer
    if pace.sm_clock_mhz < (1 - SMALLEST_CHANGE) * median(clocks):
        why = f", because of: {pace.throttled}" if pace.throttled else ""
        return LateCause.CLOCK, f"{longer}, at {pace.sm_clock_mhz} MHz instead of {median(clocks):.0f} MHz{why}"
    return LateCause.DEVICE, f"{longer}, at the same clock, as where another process uses it"


def _work(table: Steps) -> float | None:
    for column in (table.tokens, table.samples, table.micro_batches):
        if present(column).any():
            return float(np.mean(column.compressed()))
    return None


def _read_clocks(run: Run) -> dict[int, tuple[int, str]]:
    clocks = {}
    ranks_by_device = find_device_ranks(run.ranks)
    for gpu in run.gpus:
        works = np.ma.filled(gpu.util_percent, 0) > 0
        clock, bits = gpu.sm_clock_mhz[works], gpu.throttle[works].compressed()
        causes = [name for bit, (name, _) in THROTTLING_CAUSES.items() if 2 * np.count_nonzero(bits & bit) > len(bits)]
        for rank in ranks_on_gpu(gpu, ranks_by_device):
            if present(clock).any():
                clocks[rank] = round(float(np.median(clock.compressed()))), " and ".join(causes)
    return clocks
