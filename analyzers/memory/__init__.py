"""What filled the memory of each device: the allocator's history of each window, followed to its peak."""

from __future__ import annotations

from perfscope.analyzers.memory.result import MemoryUse, describe_memory
from perfscope.tables.run import Run


def analyze(run: Run) -> MemoryUse:
    """The peaks of all ranks of a run.

    Raises:
        NotApplicable: The run has no allocator's history.
    """
    return describe_memory(run.read_memory(), replicas=_count_replicas(run))


def _count_replicas(run: Run) -> int:
    """Ranks that hold the same optimizer states, where nothing shards them; 1 where that is not certain."""
    world_size = max((rank.world_size for rank in run.ranks), default=1)
    is_split = any(index for rank in run.ranks for axis, index in rank.parallel.items() if axis != "dp")
    is_sharded = is_split or any(model.zero_stage for model in run.models)
    is_ddp = any(setup.ddp is not None for setup in run.setups.values())
    return world_size if is_ddp and not is_sharded else 1
