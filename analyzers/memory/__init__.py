"""What filled the memory of each device: the allocator's history of each window, followed to its peak."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfscope.analyzers.memory.peak import DevicePeak
from perfscope.analyzers.memory.result import MemoryUse, describe_memory
from perfscope.constants import GB
from perfscope.tables.run import Run

#: So much more outside of the window is worth a note, as a share of the window's peak. Torch's counter has up to 0.5 %
#: more than the history: blocks whose rest is too small to be split off.
_NOTEWORTHY = 0.01
#: Behind the first step DistributedDataParallel makes its buckets anew, in the order in which gradients came.
_REBUILDING_STEPS = (1, 2)


def analyze(run: Run) -> MemoryUse:
    """The peaks of all ranks of a run.

    Raises:
        NotApplicable: The run has no allocator's history.
    """
    use = describe_memory(run.read_memory(), replicas=_count_replicas(run))
    return replace(use, notes=(*use.notes, *(note for peak in use.peaks for note in _describe_higher_peak(peak, run))))


def _describe_higher_peak(peak: DevicePeak, run: Run) -> tuple[str, ...]:
    """That the process held more outside of the window, and in which step."""
    excess = 0 if peak.process_peak_bytes is None else peak.process_peak_bytes - peak.peak_bytes
    if peak.process_peak_bytes is None or excess < _NOTEWORTHY * peak.peak_bytes:
        return ()
    step = _find_step_of_peak(peak.rank, peak.process_peak_bytes, run)
    note = (
        f"{'' if peak.rank is None else f'Rank {peak.rank}: '}outside of the window the process held "
        f"{peak.process_peak_bytes / GB:.3f} GB, {excess / GB:.3f} GB more{'' if step is None else f', in step {step}'}"
    )
    setup = None if peak.rank is None else run.setups.get(peak.rank)
    if step in _REBUILDING_STEPS and setup is not None and setup.ddp is not None:
        note += ": DistributedDataParallel makes its buckets anew then, beside the old ones"
    return (note + ".",)


def _find_step_of_peak(rank: int | None, peak_bytes: int, run: Run) -> int | None:
    """The first step behind which the allocator had held the most that the process ever held."""
    for table in run.steps:
        if table.rank == rank:
            reached = np.ma.filled(table.memory_peak_bytes, 0) >= peak_bytes
            if reached.any():
                return int(table.step[reached.argmax()])
    return None


def _count_replicas(run: Run) -> int:
    """Ranks that hold the same optimizer states, where nothing shards them; 1 where that is not certain."""
    world_size = max((rank.world_size for rank in run.ranks), default=1)
    is_split = any(index for rank in run.ranks for axis, index in rank.parallel.items() if axis != "dp")
    is_sharded = is_split or any(model.zero_stage for model in run.models)
    is_ddp = any(setup.ddp is not None for setup in run.setups.values())
    return world_size if is_ddp and not is_sharded else 1
