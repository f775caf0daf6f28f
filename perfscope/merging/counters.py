"""NVML's samples as counters under the GPU of each rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from perfscope.analyzers.tracks.job_tracks import JobTracks
from perfscope.constants import MIB, MS_PER_S, NS_PER_S
from perfscope.merging.events import TraceEvent, name_track, to_json, to_us
from perfscope.merging.slots import Slot
from perfscope.sources.traces.metadata import read_metadata
from perfscope.tables.columns import MaskedInt64
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.run import Run

_BESIDE_NS = NS_PER_S


def draw_counters(
    run: Run, tracks: JobTracks, slots: Mapping[str, Slot], origin_ns: int, within: tuple[int, int]
) -> Iterator[TraceEvent]:
    """The samples that were taken within some moments of the common clock, or a second around them.

    Args:
        run: The run.
        tracks: The tracks of its ranks.
        slots: The slot of each trace.
        origin_ns: The moment on the common clock that is written as 0.
        within: The first and the last moment.
    """
    uuids = {rank.rank: rank.device_uuid for rank in run.ranks}
    drawn: set[str] = set()
    for rank in tracks.ranks:
        uuid = None if rank.rank is None else uuids.get(rank.rank)
        gpu = next((gpu for gpu in run.gpus if gpu.uuid == uuid), None)
        ahead_ns = _wall_ahead_of_monotonic(rank.trace)
        if gpu is None or rank.device is None or ahead_ns is None or gpu.uuid in drawn:
            continue
        drawn.add(gpu.uuid)
        slot = slots[rank.trace]
        process = slot.device_process(rank.device)
        shift_ns = ahead_ns - tracks.clock_of(rank.rank).offset_ns
        yield from name_track(process, f"{slot.label}: GPU {rank.device}", process)
        yield from _draw_gpu(gpu, process, shift_ns, origin_ns, within)


def _draw_gpu(
    gpu: GpuSamples, process: int, shift_ns: int, origin_ns: int, within: tuple[int, int]
) -> Iterator[TraceEvent]:
    times_ns = gpu.t_ns + shift_ns
    rows = np.flatnonzero((times_ns >= within[0] - _BESIDE_NS) & (times_ns <= within[1] + _BESIDE_NS))
    columns: Sequence[tuple[str, MaskedInt64, float]] = (
        ("power (W)", gpu.power_mw, MS_PER_S),
        ("SM clock (MHz)", gpu.sm_clock_mhz, 1),
        ("utilization (%)", gpu.util_percent, 1),
        ("memory in use (MiB)", gpu.memory_used_bytes, MIB),
        ("temperature (C)", gpu.temperature_c, 1),
    )
    for name, column, unit in columns:
        for row in rows.tolist():
            if column[row] is not np.ma.masked:
                time = to_us(int(times_ns[row]) - origin_ns)
                value = to_json({"value": int(column[row]) / unit})
                yield TraceEvent("C", "nvml", f"NVML {name}", process, 0, time, args=value)


def _wall_ahead_of_monotonic(trace: str) -> int | None:
    """What a host's wall clock was ahead of its monotonic one when it wrote a trace; absent where it does not say."""
    metadata = read_metadata(trace)
    if metadata is None or metadata.wall_ns is None or metadata.monotonic_ns is None:
        return None
    return metadata.wall_ns - metadata.monotonic_ns
