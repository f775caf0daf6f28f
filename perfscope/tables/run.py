"""A run of ``perfscope profile``: all of it but its traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct, field

from perfscope.tables.gpus import GpuSamples
from perfscope.tables.memory import AllocatorHistory
from perfscope.tables.micro_batches import MicroBatches
from perfscope.tables.model import Model
from perfscope.tables.saves import Saves
from perfscope.tables.stated import Stated
from perfscope.tables.steps import Steps
from perfscope.tables.timeline import Timeline
from perfscope.wire.places import PlacesRecord
from perfscope.wire.setup import SetupRecord


class Window(Struct, frozen=True):
    """One profiler window of one rank: its training steps, and what it cost.

    See ``perfscope.wire.records.WindowRecord``; what the record leaves out is absent. ``attempt`` counts the processes
    that had the rank before.
    """

    rank: int
    first_step: int
    last_step: int
    trace: str
    start_ns: int
    stop_ns: int
    export_ns: int
    trace_bytes: int
    partial: bool
    release_ns: int | None = None
    rss_before_bytes: int | None = None
    rss_after_bytes: int | None = None
    detached: bool | None = None
    attached_because: str | None = None
    activities: str | None = None
    attempt: int = 0


class Rank(Struct, frozen=True):
    """The identity of a rank: see ``perfscope.wire.records.RankRecord``.

    ``device_uuid`` is NVML's UUID of the device, where NVML was sampled; ``device_uuids`` are those of all devices that
    hold tensors of the process. ``visible_uuids`` name all devices that it could have used, None where unknown.
    ``options`` are those of its command line; None where that was not recorded.
    """

    rank: int
    attempt: int
    world_size: int
    host: str
    device_uuid: str | None
    device_uuids: tuple[str, ...]
    visible_uuids: tuple[str, ...] | None
    device_type: str | None
    device_name: str | None
    notes: tuple[str, ...]
    parallel: Mapping[str, int]
    options: Mapping[str, str] | None = None


class Run(Struct, frozen=True, eq=False):
    """All of a run but its traces.

    Attributes:
        command: The profiled command, without secrets; empty where run.json is missing.
        exit_status: How the command ended, in words; absent while it runs or where unknown.
        ranks, steps: One entry a process that reported, and one a process that completed a step.
        gpus, gpu_notes: The NVML samples of every GPU, and why a host has none, in words.
        micro_batches: Passes of micro-batches, one entry a step and rank; empty without a pipeline.
        saves: Checkpoint saves that the hooks timed; None where there was none.
        timelines: The life of each process that completed a step.
        setups: How each rank trains, of its last process; empty where that was not recorded.
        read_memory: Reads the histories of allocators, which most analyzers do not need.
        planned_windows: First and last step of each window that was asked for; empty where that was not recorded.
        places: Where the training thread of each rank was seen.
        allocator: The setting of torch's allocator by the environment; empty where it has none.
        recorded: The profiler's options that were on: ``shapes``, ``modules`` and so on.
    """

    path: str
    command: tuple[str, ...]
    exit_status: str | None
    ranks: tuple[Rank, ...]
    steps: tuple[Steps, ...]
    windows: tuple[Window, ...]
    damage: tuple[str, ...]
    gpus: tuple[GpuSamples, ...] = ()
    gpu_notes: tuple[str, ...] = ()
    micro_batches: tuple[MicroBatches, ...] = ()
    models: tuple[Model, ...] = ()
    saves: Saves | None = None
    stated: Stated = field(default_factory=Stated)
    timelines: tuple[Timeline, ...] = ()
    setups: Mapping[int, SetupRecord] = field(default_factory=dict)
    planned_windows: tuple[tuple[int, int], ...] = ()
    places: Mapping[int, PlacesRecord] = field(default_factory=dict)
    allocator: str = ""
    recorded: frozenset[str] = frozenset()
    read_memory: Callable[[], tuple[AllocatorHistory, ...]] = tuple

    @property
    def processes(self) -> int | None:
        """How many ranks the job had; None where none reported."""
        return max((rank.world_size for rank in self.ranks), default=None)

    @property
    def devices(self) -> int | None:
        """How many devices trained: one a rank, unless ranks have several, or share one; None where none reported."""
        if self.processes is None:
            return None
        used = {rank.rank: rank.device_uuids for rank in self.ranks}  # of its last attempt
        if len(used) == self.processes and all(used.values()):
            return len({uuid for uuids in used.values() for uuid in uuids})
        return self.processes * max(1, *(len(uuids) for uuids in used.values()))
