"""Peaks of device memory over the devices that a process uses."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.hooks.facts.device_memory import DeviceMemory


def test_of_several_devices_the_fullest_counts_and_unused_ones_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
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
    memory = DeviceMemory()
    assert memory.read_peaks(1) == {"memory_peak_bytes": 90, "memory_reserved_bytes": 100}
    reserved[2] = 300
    memory.read_peaks(2)
    read.clear()
    assert memory.read_peaks(3) == {"memory_peak_bytes": 290, "memory_reserved_bytes": 300}
    assert read == [0, 2]


def test_without_a_device_there_is_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert DeviceMemory().read_peaks(1) == {}


def test_the_first_steps_are_read_and_then_two_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    memory = DeviceMemory()
    steps = [step for step in range(1, 101) if _is_read(memory, 10**9 + step * 50_000_000)]
    assert steps == [*range(1, 17), 26, 36, 46, 56, 66, 76, 86, 96]


def _is_read(memory: DeviceMemory, now_ns: int) -> bool:
    """What the capture does at the end of a step."""
    is_due = now_ns >= memory.due_ns
    if is_due:
        memory.read_peaks(now_ns)
    return is_due
