"""Claims about the hooks that time micro-batches: nothing waits, nothing is lost quietly, every pass is named."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from perfscope import wire
from perfscope.hooks.open_window import UNTIMED
from perfscope.hooks.timers.passes import PassTimer
from tests.conftest import SCRIPTS, analysis, profile, step_lines
from tests.hooks.frameworks.running import TORCHRUN

pytestmark = pytest.mark.slow

WORKLOAD = SCRIPTS / "gpt_pipeline.py"


class Pass(NamedTuple):
    kind: str
    microbatch: int
    stage: int
    stages: int
    device: int
    devices: int


@dataclass
class Device:
    """A device that runs behind the host: what was launched at ``launched`` is done when ``reached`` gets there."""

    launched: float = 0.0
    reached: float = 0.0
    made: int = 0
    waits: int = 0
    is_capturing: bool = False

    def torch(self) -> Any:
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                device.made += 1
                self.at = -1.0

            def record(self) -> None:
                self.at = device.launched

            def query(self) -> bool:
                return self.at <= device.reached

            def elapsed_time(self, other: Event) -> float:
                assert other.at <= device.reached, "asked before the device got there"
                return other.at - self.at

            def synchronize(self) -> None:
                device.waits += 1

        cuda = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            is_current_stream_capturing=lambda: self.is_capturing,
            Event=Event,
        )
        return SimpleNamespace(cuda=cuda, is_grad_enabled=lambda: True)


@pytest.fixture(autouse=True)
def _timed_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UNTIMED, "rest", False)
    monkeypatch.setattr(UNTIMED, "forwards", 0)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()
    monkeypatch.setitem(sys.modules, "torch", found.torch())
    return found


def _run_pass(timer: PassTimer, device: Device, identity: Pass, ms: float) -> None:
    timed_pass = timer.begin(*identity, in_window=False)
    device.launched += ms
    timer.end(timed_pass)


def _passes(microbatches: int = 2) -> list[Pass]:
    return [Pass(kind, index, 1, 2, 1, 2) for index in range(microbatches) for kind in ("F", "B")]


def test_a_step_is_written_when_the_device_is_done_and_nobody_waits(device: Device) -> None:
    timer = PassTimer()
    for which in _passes():
        _run_pass(timer, device, which, 2.0 if which.kind == "F" else 4.0)
        device.launched += 1.0  # the next stage is waited for
    timer.end_step(1)
    assert timer.pop_finished() == []
    device.reached = device.launched
    (record,) = timer.pop_finished()
    assert record.step == 1
    assert (record.device, record.devices, record.stages) == (1, 2, 2)
    assert record.order == ("F0.1", "B0.1", "F1.1", "B1.1")
    assert record.times_ns == ((0, 2_000_000), (3_000_000, 4_000_000), (8_000_000, 2_000_000), (11_000_000, 4_000_000))
    assert record.span_ns == 15_000_000
    assert record.totals == (("F", 1, 2, 4_000_000), ("B", 1, 2, 8_000_000))
    assert device.waits == 0


def test_an_order_is_written_once_and_events_are_used_again(device: Device) -> None:
    timer = PassTimer()
    records = []
    for step in range(1, 30):
        for which in _passes():
            _run_pass(timer, device, which, 1.0)
        timer.end_step(step)
        device.reached = device.launched
        records += timer.pop_finished()
    assert [record.step for record in records] == list(range(1, 30))
    assert records[0].order is not None
    assert all(record.order is None and record.times_ns is None for record in records[1:])
    assert device.made == 8


def test_a_device_that_never_answers_costs_bounded_memory(device: Device) -> None:
    timer = PassTimer()
    for step in range(100):
        for which in _passes():
            _run_pass(timer, device, which, 1.0)
        timer.end_step(step)
        assert timer.pop_finished() == [] or step == 0
    assert device.made <= 8 * 18


@pytest.mark.parametrize("untimed", [0, 1, 3, 15])
def test_passes_rest_from_the_beginning_of_a_step_and_never_in_one_that_is_timed(untimed: int) -> None:
    timer = PassTimer()
    timer.take_micro_batches(4, calls=4)
    timer.untimed = untimed
    for steps in range(40):
        UNTIMED.rest = False
        last = timer.rest(steps, last=30)
        assert UNTIMED.rest == bool((steps + 1) & untimed)
        quiet = range(steps + 1, last + 1) if UNTIMED.rest else range(0)
        assert not any((step + 1) & untimed == 0 for step in quiet), "the end ahead of a timed step is noticed"
        assert last <= 30


def test_passes_inside_a_captured_graph_are_left_out(device: Device) -> None:
    timer = PassTimer()
    device.is_capturing = True
    _run_pass(timer, device, Pass("F", 0, 0, 2, 0, 2), 1.0)
    device.is_capturing = False
    timer.end_step(1)
    assert timer.pop_finished() == []
    assert device.made == 0


SIZE = ["--layers", "4", "--hidden", "64", "--heads", "2", "--seq-len", "32", "--vocabulary", "128"]
TRAININGS: dict[str, tuple[str | Path, ...]] = {
    "torch": (*TORCHRUN, "2", WORKLOAD, "--microbatches", "4", "--steps", "120", *SIZE),
    "megatron": (*TORCHRUN, "2", SCRIPTS / "megatron_core.py", "train", "1", "2", "1"),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_all_ranks_time_the_same_steps_where_one_in_some_is_timed(name: str, tmp_path: Path) -> None:
    path = f"{SCRIPTS.parent.parent}{os.pathsep}{SCRIPTS}"
    options = ["--exec", "--steps", "71-73"]
    ended = profile(*TRAININGS[name], cwd=tmp_path, options=options, STEPS="120", PYTHONPATH=path)
    assert ended.code == 0, ended.stderr
    timed = []
    for rank in ("00000", "00001"):
        folder = tmp_path / "RUN" / "ranks" / rank
        timed.append([json.loads(line)["step"] for line in (folder / wire.MICRO_BATCHES_FILE).read_text().splitlines()])
        counts = {line["step"]: line["micro_batches"] for line in step_lines(tmp_path / "RUN", rank)}
        assert counts == dict.fromkeys(range(1, 121), 4), "micro-batches are counted in each step"
    for steps in timed:
        assert steps[:32] == list(range(1, 33))
        assert {71, 72, 73} <= set(steps), "the window's passes are marked"
        later = [step for step in steps if step > 32 and step not in range(71, 74)]
        assert 2 <= len(later) < 60, "small steps are not all timed"
        assert all(step % 2 == 0 for step in later if step > 40)
    common = set(timed[0]) & set(timed[1])
    assert len([step for step in common if step > 40]) >= 5, "ranks that time more and fewer steps have some in common"
    found = analysis(tmp_path / "RUN")["results"]["pipeline_steps"]
    assert {step["step"] for step in found["steps"]} <= common
    assert 0 < found["fraction_of_total"] < 1
