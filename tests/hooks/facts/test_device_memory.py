"""Peaks of device memory over the devices that a process uses."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.hooks.facts.device_memory import DevicePeaks


def test_the_fullest_of_the_used_devices_counts_at_the_first_steps_and_then_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reserved, read = {0: 100, 1: 0, 2: 0}, list[int]()

    def stats(device: int) -> dict[str, Any]:
        read.append(device)
        held = reserved[device]
        return {name: {"all": {"peak": held - less}} for name, less in (("allocated_bytes", 10), ("reserved_bytes", 0))}

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 3,
        current_device=lambda: 0,
        memory_stats_as_nested_dict=stats,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    memory = DevicePeaks()
    assert memory.read_at_step() == {"memory_peak_bytes": 90}
    assert memory.read_beside() == {}
    reserved[2] = 300
    memory.read_at_step()
    read.clear()
    assert memory.read_at_step() == {"memory_peak_bytes": 290}
    assert read == [0, 2]
    assert not memory.is_read_beside
    memory.read_at_step()
    assert memory.is_read_beside
    assert memory.read_beside() == {"memory_peak_bytes": 290}
