"""Joins the NVML samples of GPUs with the training steps of the ranks that used them.

Both are on the host's monotonic clock. A GPU that several ranks share is one GPU, aligned to the steps of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from perfscope.errors import MissingInput, NoDevice
from perfscope.measures.step_selection import last_attempts
from perfscope.result import Doc, Figures
from perfscope.tables.columns import Int64, present
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.run import Rank, Run
from perfscope.tables.steps import Steps

#: NVML's bits of the causes that are throttling, and the counter of the time that each was active.
THROTTLING_CAUSES = {
    0x004: ("software power cap", "sw_power_cap_ns"),
    0x008: ("hardware slowdown", None),
    0x010: ("sync boost", "sync_boost_ns"),
    0x020: ("software thermal slowdown", "sw_thermal_ns"),
    0x040: ("hardware thermal slowdown", "hw_thermal_ns"),
    0x080: ("hardware power brake", "hw_power_brake_ns"),
    0x200: ("board limit", None),
    0x400: ("reliability voltage", None),
}


class GpuOfRanks(Figures, frozen=True):
    """An entry of a result about each GPU."""

    host: Annotated[str, Doc("Its machine.")]
    uuid: Annotated[str, Doc("Its UUID.")]
    name: Annotated[str, Doc("Its model.")]
    ranks: Annotated[tuple[int, ...], Doc("The ranks that trained on it.")]


@dataclass(frozen=True, slots=True, eq=False)
class UsedGpu:
    """A GPU that ranks trained on, with the steps of the first of them."""

    samples: GpuSamples
    ranks: tuple[int, ...]
    steps: Steps

    @property
    def identity(self) -> tuple[str, str, str, tuple[int, ...]]:
        """The fields of ``GpuOfRanks``."""
        return self.samples.host, self.samples.uuid, self.samples.name, self.ranks


def require_samples(run: Run) -> tuple[GpuSamples, ...]:
    """The samples of every GPU. Raises MissingInput: there are none, with the reason."""
    if not run.gpus:
        raise NoDevice(run.gpu_notes[0] if run.gpu_notes else "no NVML samples were taken")
    return run.gpus


def used_gpus(run: Run) -> tuple[UsedGpu, ...]:
    """The sampled GPUs that a rank trained on, in the order of their ranks.

    Raises MissingInput: there is none, with the reason.
    """
    steps = {table.rank: table for table in last_attempts(run.steps)}
    ranks_by_device = find_device_ranks(run.ranks)
    used = []
    for gpu in require_samples(run):
        ranks = tuple(rank for rank in ranks_on_gpu(gpu, ranks_by_device) if rank in steps)
        if ranks:
            used.append(UsedGpu(gpu, ranks, steps[ranks[0]]))
    if not used:
        raise MissingInput("no rank could be matched to a sampled GPU")
    return tuple(sorted(used, key=lambda gpu: (gpu.ranks, gpu.samples.index or 0)))


def find_device_ranks(ranks: Sequence[Rank]) -> dict[tuple[str, str], set[int]]:
    """The ranks that trained on each device, by host and UUID."""
    ranks_by_device: dict[tuple[str, str], set[int]] = {}
    for rank in ranks:
        for uuid in rank.device_uuids:
            ranks_by_device.setdefault((rank.host, uuid), set()).add(rank.rank)
    return ranks_by_device


def ranks_on_gpu(gpu: GpuSamples, ranks_by_device: Mapping[tuple[str, str], set[int]]) -> tuple[int, ...]:
    """The ranks that trained on a GPU, in order."""
    return tuple(sorted(ranks_by_device.get((gpu.host, gpu.uuid), set())))


def step_intervals_ns(steps: Steps) -> tuple[Int64, Int64, Int64]:
    """The beginning and the end of each step whose time is known, and its row."""
    rows = np.flatnonzero(present(steps.wall_ns))
    ends = steps.end_ns[rows]
    return ends - np.asarray(steps.wall_ns.data)[rows], ends, rows
