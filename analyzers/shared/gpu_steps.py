"""Joins what NVML told of GPUs with the training steps of the ranks that used them.

Both are on the host's monotonic clock. A GPU that several ranks share is one GPU, aligned to the steps of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.shared.step_selection import last_attempts
from perfscope.errors import MissingInput
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.run import Rank, Run
from perfscope.tables.steps import Steps


@dataclass(frozen=True, slots=True, eq=False)
class UsedGpu:
    """A GPU that ranks trained on.

    Attributes:
        samples: What NVML told of it.
        ranks: The ranks, in order.
        steps: The steps of the first of them.
        instances: How many of its MIG instances there are; 0 without MIG.
    """

    samples: GpuSamples
    ranks: tuple[int, ...]
    steps: Steps
    instances: int


def used_gpus(run: Run) -> tuple[UsedGpu, ...]:
    """The sampled GPUs that a rank trained on, in the order of their ranks.

    Raises:
        MissingInput: There is none, with the reason.
    """
    if not run.gpus:
        raise MissingInput(run.gpu_notes[0] if run.gpu_notes else "no NVML samples were taken")
    steps = {table.rank: table for table in last_attempts(run.steps)}
    on = ranks_of_devices(run.ranks)
    found = []
    for gpu in run.gpus:
        ranks = tuple(rank for rank in ranks_on(gpu, on) if rank in steps)
        if ranks:
            found.append(UsedGpu(gpu, ranks, steps[ranks[0]], len(gpu.instances)))
    if not found:
        raise MissingInput("no rank is known to have trained on a sampled GPU")
    return tuple(sorted(found, key=lambda used: (used.ranks, used.samples.index or 0)))


def ranks_of_devices(ranks: Sequence[Rank]) -> dict[tuple[str, str], set[int]]:
    """The ranks that trained on each device, by host and UUID."""
    on: dict[tuple[str, str], set[int]] = {}
    for rank in ranks:
        for uuid in rank.device_uuids:
            on.setdefault((rank.host, uuid), set()).add(rank.rank)
    return on


def ranks_on(gpu: GpuSamples, on: Mapping[tuple[str, str], set[int]]) -> tuple[int, ...]:
    """The ranks that trained on a GPU or on a MIG instance of it, in order."""
    uuids = [gpu.uuid, *(instance.uuid for instance in gpu.instances)]
    return tuple(sorted(set().union(*(on.get((gpu.host, uuid), set()) for uuid in uuids))))


def intervals_ns(steps: Steps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The beginning and the end of each step whose time is known, and its row."""
    rows = np.flatnonzero(~np.ma.getmaskarray(steps.wall_ns))
    ends = steps.end_ns[rows]
    return ends - np.asarray(steps.wall_ns.data)[rows], ends, rows


def ranks_text(ranks: Sequence[int]) -> str | int | None:
    """Ranks as a table's cell."""
    if not ranks:
        return None
    return ranks[0] if len(ranks) == 1 else ", ".join(str(rank) for rank in ranks)
