"""An allocator of CUDA that exists in the tests only: it allocates nothing, and keeps a history as torch does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from perfscope.hooks.memory import history

SEGMENT = 0x7F0000000000
SEGMENT_BYTES = 1 << 30


class FakeAllocator:
    """Stands in for ``torch.cuda``'s allocator: ``allocate`` and ``free`` are what a training would do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_recording = False
        self.options: dict[str, Any] = {}
        self.starts = self.stops = 0
        self.trace: list[dict[str, Any]] = []
        self.live: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self.peak = 0
        self.observers: list[Callable[..., None]] = []
        self._next = SEGMENT
        cuda = torch.cuda
        monkeypatch.setattr(history, "is_in_use", lambda _torch: True)
        monkeypatch.setattr(cuda, "current_device", lambda: 0)
        monkeypatch.setattr(cuda, "mem_get_info", lambda _device=None: (5 << 30, 80 << 30))
        monkeypatch.setattr(cuda, "memory_stats_as_nested_dict", lambda _device=None: self.stats())
        monkeypatch.setattr(cuda.memory, "_record_memory_history", self._record)
        monkeypatch.setattr(cuda.memory, "_snapshot", self.snapshot)
        monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: self.is_recording, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", self.observers.append, raising=False)

    def allocate(self, size: int, *functions: str) -> int:
        """Allocate bytes in functions, innermost first; returns the address."""
        address, self._next = self._next, self._next + size
        frames = [{"filename": f"/app/{name}.py", "line": 7, "name": name} for name in functions]
        self.live[address] = size, frames
        self.peak = max(self.peak, sum(size for size, _ in self.live.values()))
        self._add("alloc", address, size, frames)
        return address

    def free(self, address: int) -> None:
        """Free what was allocated."""
        size, _ = self.live.pop(address)
        self._add("free_requested", address, size, [])
        self._add("free_completed", address, size, [])

    def run_out(self, size: int) -> None:
        """What torch does before it raises an out-of-memory error."""
        self.trace.append({"action": "oom", "device_free": 5, "size": size, "stream": 0, "frames": []})
        for observer in self.observers:
            observer(0, size, SEGMENT_BYTES, 5)

    def stats(self) -> dict[str, Any]:
        allocated = sum(size for size, _ in self.live.values())
        return {
            "allocated_bytes": {"all": {"current": allocated, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": SEGMENT_BYTES, "peak": SEGMENT_BYTES}},
        }

    def snapshot(self, *_: object) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = [
            {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": frames}
            for address, (size, frames) in sorted(self.live.items())
        ]
        used = max((block["address"] + block["size"] for block in blocks), default=SEGMENT)
        rest: dict[str, Any] = {
            "address": used,
            "size": SEGMENT + SEGMENT_BYTES - used,
            "state": "inactive",
            "frames": [],
        }
        segment = {"device": 0, "address": SEGMENT, "total_size": SEGMENT_BYTES, "stream": 0, "segment_type": "large"}
        return {"segments": [{**segment, "blocks": [*blocks, rest]}], "device_traces": [list(self.trace)]}

    def _record(self, enabled: str | None = "all", **options: object) -> None:
        self.is_recording = enabled is not None
        self.starts += self.is_recording
        self.stops += not self.is_recording
        self.options = options or self.options
        self.trace.clear()

    def _add(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        if self.is_recording:
            times = {"time_us": time.time_ns() // 1000}
            self.trace.append({"action": action, "addr": address, "size": size, "stream": 0, "frames": frames, **times})
