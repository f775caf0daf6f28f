"""A probe times a step's forward passes and its optimizer on the device, and reads the events later."""

from __future__ import annotations

from typing import ClassVar

import pytest

from perfscope.hooks.timers import probes as module
from perfscope.hooks.timers.probes import DeviceProbes, ShardedUnits
from perfscope.wire.host import DeviceProbe


class Device:
    """A device whose clock the test turns, and that has passed events up to a moment; it lags behind the host."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.passed_ms = 0.0
        self.lag_ms = 0.0
        self.is_capturing = False


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at_ms = -1.0

    def record(self) -> None:
        self.at_ms = self.device.now_ms

    def query(self) -> bool:
        return self.at_ms <= self.device.passed_ms

    def elapsed_time(self, end: Event) -> float:
        return end.at_ms - self.at_ms


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def probes(device: Device, monkeypatch: pytest.MonkeyPatch) -> DeviceProbes:
    monkeypatch.setattr(module, "_now_ns", lambda: round((device.now_ms - device.lag_ms) * 1_000_000))
    monkeypatch.setattr(module, "_process_ns", lambda: round((device.now_ms - device.lag_ms) * 1_000_000))
    probes = DeviceProbes()
    probes._make_event = lambda: Event(device)  # type: ignore[assignment]
    probes._is_capturing = lambda: device.is_capturing
    probes._make_probe = DeviceProbe
    probes.next_step = 0
    return probes


def run_step(probes: DeviceProbes, device: Device, step: int, forward_ms: float = 3) -> None:
    probes.start(step - 1)
    for _ in range(2):
        device.now_ms += 1
        on_end = probes.on_forward()
        device.now_ms += forward_ms
        if on_end is not None:
            on_end()
        device.now_ms += 5
    for _ in range(2):  # an optimizer in two parts
        probes.on_update()
        device.now_ms += 2
        probes.on_update_end()
    probes.finish(step)


def test_the_parts_of_a_step_are_those_between_its_events(probes: DeviceProbes, device: Device) -> None:
    run_step(probes, device, 20)
    assert probes.read() == {}, "the device has not passed it"
    device.passed_ms = device.now_ms
    assert probes.read() == {"probe": DeviceProbe(20, 1_000_000, 6_000_000, 11_000_000, 4_000_000, 0, 0, 0)}
    assert probes.read() == {}
    assert not probes.is_on
    assert probes.next_step == 35


def test_a_forward_whose_end_is_not_seen_counts_as_a_part_of_the_backward(probes: DeviceProbes, device: Device) -> None:
    probes.start(4)
    probes.on_forward()
    device.now_ms += 7
    probes.on_update()
    device.now_ms += 2
    probes.on_update_end()
    probes.finish(5)
    device.passed_ms = device.now_ms
    assert probes.read() == {"probe": DeviceProbe(5, 0, None, 7_000_000, 2_000_000, None, 0, 0)}


def test_a_device_that_comes_to_work_when_half_of_it_was_launched_waited_for_the_other_half_at_most(
    probes: DeviceProbes, device: Device
) -> None:
    device.passed_ms = 1000
    probes.start(4)
    device.now_ms, device.lag_ms = 30, 1  # the device comes to the optimizer at 30 ms, the host at 29 ms
    probes.on_update()
    device.now_ms += 3
    device.lag_ms = 2
    probes.on_update_end()  # the device is over with it at 33 ms, the host was at 31 ms
    probes.finish(5)
    assert probes.read() == {"probe": DeviceProbe(5, 0, None, 30_000_000, 3_000_000, None, 1_000_000, 0)}


def test_an_event_that_cannot_be_recorded_ends_the_probes_and_nothing_else(
    probes: DeviceProbes, device: Device
) -> None:
    device.is_capturing = True  # a CUDA graph
    probes.start(4)
    assert not probes.is_on
    device.is_capturing = False
    probes._make_event = lambda: 1 // 0  # type: ignore[assignment]
    probes.start(4)
    assert not probes.is_on
    assert probes.next_step > 10**9


def test_a_device_that_hangs_does_not_fill_the_memory(probes: DeviceProbes, device: Device) -> None:
    for step in range(100):
        run_step(probes, device, step)
    assert len(probes._pending) <= 16


class Group:
    """What holds the parameters of a module that FSDP 2 shards."""

    calls: ClassVar[list[str]] = []

    def pre_forward(self, name: str) -> str:
        self.calls.append(f"{name} begins")
        return name

    def post_forward(self, name: str) -> str:
        self.calls.append(f"{name} ends")
        return name


def test_the_first_sharded_modules_are_timed_without_those_that_hold_them(probes: DeviceProbes, device: Device) -> None:
    methods = vars(Group)["pre_forward"], vars(Group)["post_forward"]
    probes.sharded = ShardedUnits(Group)
    root, inner = Group(), [Group() for _ in range(10)]

    def forward() -> None:
        assert root.pre_forward("root") == "root"
        for group in inner:
            device.now_ms += 1  # its weights are gathered
            group.pre_forward("inner")
            device.now_ms += 2
            assert group.post_forward("inner") == "inner"
        root.post_forward("root")

    forward()
    probes.start(4)
    forward()
    probes.on_update()
    probes.on_update_end()
    probes.finish(5)
    forward()
    assert methods == (vars(Group)["pre_forward"], vars(Group)["post_forward"])
    assert len(Group.calls) == 3 * 22
    device.passed_ms = device.now_ms
    probe = probes.read()["probe"]
    assert (probe.forward_ns, probe.units_ns, probe.units_launch_ns) == (None, 16_000_000, 0)


def test_a_process_is_idle_while_none_of_its_threads_has_a_processor(
    probes: DeviceProbes, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor_ms = [5.0]
    monkeypatch.setattr(module, "_process_ns", lambda: round(processor_ms[0] * 1_000_000))
    probes.start(4)
    device.now_ms += 30
    processor_ms[0] += 8
    probes.on_update()
    probes.on_update_end()
    probes.finish(5)
    device.passed_ms = device.now_ms
    assert probes.read()["probe"].idle_ns == 22_000_000
