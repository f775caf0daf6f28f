"""How much device memory a process took, from the allocator's own counters: no synchronisation."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any


@dataclass
class DeviceMemory:
    """Reads the peaks of the devices that this process uses: the largest of any of them, where it uses several.

    The allocator's nested counters are read once a device, because flattening them takes longer than reading.
    """

    _devices: list[int] = field(default_factory=list)
    _reads: int = 0

    def read_peaks(self) -> dict[str, int]:
        """``memory_peak_bytes`` and ``memory_reserved_bytes`` since the start; empty before a device is used."""
        cuda = sys.modules["torch"].cuda
        if not cuda.is_initialized():
            return {}
        self._reads += 1
        if self._reads & (self._reads - 1) == 0:  # at 1, 2, 4, 8 ...: one device more is rare, and a look is not free
            everywhere = {device: cuda.memory_stats_as_nested_dict(device) for device in range(cuda.device_count())}
            used = [device for device, stats in everywhere.items() if _peak(stats, "reserved_bytes")]
            self._devices = used or [cuda.current_device()]
        stats = [cuda.memory_stats_as_nested_dict(device) for device in self._devices]
        return {
            "memory_peak_bytes": max(_peak(one, "allocated_bytes") for one in stats),
            "memory_reserved_bytes": max(_peak(one, "reserved_bytes") for one in stats),
        }


def _peak(stats: Any, counter: str) -> int:
    return int(stats.get(counter, {}).get("all", {}).get("peak", 0))
