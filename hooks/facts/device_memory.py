"""Peak device memory and allocations of a process, from the counters of torch's allocator: no synchronisation.

Reading them took 17 to 60 us in a step on the host of an H100, and 100 us on that of an H200. The peaks only grow: they
are read at the end of the first steps, in which an optimizer allocates its state. The thread that writes records reads
them in its turns.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from perfscope.hooks.introspection import FIRST_LOOKS

#: Counts since the start, and torch's names of them; old versions have not both.
_COUNTERS = ("alloc_retries", "num_alloc_retries"), ("device_allocs", "num_device_alloc")


@dataclass
class DevicePeaks:
    """Reads the peaks of the devices that this process uses; where it uses several, the largest one.

    The nested counters are read once per device, because flattening them takes longer than reading them.
    """

    is_read_beside: bool = False
    _devices: list[int] = field(default_factory=list)
    _reads: int = 0

    def read_at_step(self) -> dict[str, int]:
        """Read the peaks at the end of one of the first steps."""
        peaks = self._read_peaks()
        self.is_read_beside = self._reads >= FIRST_LOOKS
        return peaks

    def read_beside(self) -> dict[str, int]:
        """Read the peaks in another thread; empty during the first steps."""
        return self._read_peaks() if self.is_read_beside else {}

    def _read_peaks(self) -> dict[str, int]:
        self._reads += 1
        cuda = sys.modules["torch"].cuda
        if not cuda.is_initialized():
            return {}
        if self._reads & (self._reads - 1) == 0:  # at 1, 2, 4, 8 ...: a new device is rare, and looking costs time
            all_stats = {device: cuda.memory_stats_as_nested_dict(device) for device in range(cuda.device_count())}
            used = [device for device, counters in all_stats.items() if _peak(counters, "reserved_bytes")]
            self._devices = used or [cuda.current_device()]
        stats = [cuda.memory_stats_as_nested_dict(device) for device in self._devices]
        return {
            "memory_peak_bytes": max(_peak(counters, "allocated_bytes") for counters in stats),
            **{name: sum(int(counters[key]) for counters in stats) for name, key in _COUNTERS if key in stats[0]},
        }


def _peak(counters: Mapping[str, Mapping[str, Mapping[str, int]]], name: str) -> int:
    return int(counters.get(name, {}).get("all", {}).get("peak", 0))
