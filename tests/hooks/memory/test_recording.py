"""The allocator's history is recorded in windows and before an out-of-memory error, and harms nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from perfscope.hooks.capture import Capture
from perfscope.hooks.config import Config
from perfscope.hooks.memory import history
from perfscope.hooks.selection import WindowChoice, parse_windows
from tests.hooks.memory.fake_allocator import FakeAllocator

CALL = torch.nn.Module.__call__


@pytest.fixture(autouse=True)
def _leave_no_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that ends inside a window would leave its wrapper to the tests after it."""
    monkeypatch.setattr(torch.nn.Module, "__call__", CALL)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> FakeAllocator:
    return FakeAllocator(monkeypatch)


class Training:
    """A training of some steps, of which ``run`` is told what each step allocates."""

    def __init__(self, folder: Path, *, memory: bool = True, on_oom: bool = False, steps: str = "3-4") -> None:
        self.folder = folder
        config = Config(
            str(folder), parse_windows(steps), nvml_hz=0, memory=memory, on_oom=on_oom, window=WindowChoice.OPERATORS
        )
        self.capture = Capture(config)
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        self.optimizer = torch.optim.SGD(self.model.parameters())

    def step(self, allocator: FakeAllocator | None = None) -> None:
        self.capture.on_step_begin()
        self.model(torch.ones(2)).sum().backward()
        if allocator is not None:
            allocator.free(allocator.allocate(1000, "forward", "main"))
        self.capture.on_optimizer_step(self.optimizer)

    def histories(self) -> list[list[dict[str, Any]]]:
        files = sorted((self.folder / "memory").glob("*.jsonl"))
        return [[json.loads(line) for line in path.read_text().splitlines()] for path in files]

    def notes(self) -> list[str]:
        lines = (self.folder / "ranks" / "00000" / "events.jsonl").read_text().splitlines()
        return [event["text"] for line in lines if (event := json.loads(line))["kind"] == "note"]


def columns(lines: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(line for line in lines if line["kind"] == kind)


def test_a_window_writes_the_history_of_its_steps_and_stops_recording(tmp_path: Path, allocator: FakeAllocator) -> None:
    training = Training(tmp_path)
    for _ in range(6):
        training.step(allocator)
    training.capture.finish()
    (lines,) = training.histories()
    assert (lines[0]["kind"], lines[-1]) == ("memory", {"kind": "end", "events": 9})
    assert (lines[0]["first_step"], lines[0]["last_step"], lines[0]["cause"]) == (2, 4, "window")
    assert columns(lines, "events")["actions"] == "afc" * 3
    texts = columns(lines, "texts")["values"]
    marks = columns(lines, "marks")
    names = [texts[name] for name in marks["names"]]
    step = [("|", "2"), (">", "Sequential"), (">", "0"), ("<", "0"), (">", "1"), ("<", "1"), ("<", "Sequential")]
    assert list(zip(marks["signs"], names, strict=True))[: len(step)] == step
    assert [name for sign, name in zip(marks["signs"], names, strict=True) if sign == "|"] == ["2", "3", "4"]
    assert (allocator.starts, allocator.stops) == (1, 1)
    assert allocator.options["stacks"] == "python"
    assert torch.nn.Module.__call__ is CALL


def test_a_history_that_the_script_records_itself_goes_on(tmp_path: Path, allocator: FakeAllocator) -> None:
    training = Training(tmp_path)
    allocator.is_recording = True
    for _ in range(6):
        training.step(allocator)
    training.capture.finish()
    assert (allocator.starts, allocator.stops, allocator.is_recording) == (0, 0, True)
    assert len(training.histories()) == 1


def test_a_training_on_cpus_has_no_history_and_a_note_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path)
    for _ in range(6):
        training.step()
    training.capture.finish()
    assert training.histories() == []
    assert any("only the allocator of CUDA has a history" in note for note in training.notes())


@pytest.mark.parametrize("failure", ["_snapshot", "_record_memory_history"])
def test_what_fails_costs_the_history_alone(
    tmp_path: Path, allocator: FakeAllocator, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    def fail(enabled: object = "all", **_: object) -> None:
        if enabled is not None:
            raise RuntimeError("broken")

    monkeypatch.setattr(torch.cuda.memory, failure, fail)
    training = Training(tmp_path)
    for _ in range(6):
        training.step(allocator)
    training.capture.finish()
    assert training.histories() == []
    assert any("broken" in note for note in training.notes())
    assert list((tmp_path / "traces").glob("*.json"))
    assert torch.nn.Module.__call__ is CALL
    leftovers = (tmp_path / "memory").glob("*") if (tmp_path / "memory").exists() else ()
    assert not list(leftovers)


def test_an_out_of_memory_error_is_written_with_its_step_and_the_first_two_only(
    tmp_path: Path, allocator: FakeAllocator
) -> None:
    training = Training(tmp_path, memory=False, on_oom=True, steps="90")
    for _ in range(5):
        training.step(allocator)
    for _ in range(3):
        allocator.run_out(1 << 40)
    training.step(allocator)
    training.capture.finish()
    first, second = training.histories()
    assert (first[0]["cause"], first[0]["last_step"], first[0]["request_bytes"]) == ("out of memory", 6, 1 << 40)
    assert columns(first, "events")["actions"] == "afc" * 5 + "o"
    assert columns(second, "events")["actions"] == "afc" * 5 + "oo"
    marks = columns(first, "marks")
    texts = columns(first, "texts")["values"]
    steps = [texts[name] for sign, name in zip(marks["signs"], marks["names"], strict=True) if sign == "|"]
    assert steps == ["4", "5", "6"]


def test_an_observer_that_fails_lets_torch_raise_its_own_error(
    tmp_path: Path, allocator: FakeAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, memory=False, on_oom=True, steps="90")
    training.step(allocator)

    def fail() -> None:
        raise ValueError("broken")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", fail)
    allocator.run_out(1)
    training.step(allocator)
    training.capture.finish()
    assert any("broken" in note for note in training.notes())


def test_weights_gradients_and_states_are_found_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        history,
        "_storage",
        lambda tensor: (tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()),
    )
    model = torch.nn.Linear(3, 5)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()

    class Wrapper:
        def __init__(self) -> None:
            self.optimizer = optimizer
            self.param_groups = [{"params": [torch.nn.Parameter(torch.ones(7))]}]
            self.state: dict[object, object] = {}

    roles = history.find_roles([model], [Wrapper()])
    sizes: dict[str, list[int]] = {}
    for role in roles:
        sizes.setdefault(role.role, []).append(role.size)
    assert sorted(sizes["weights"]) == [20, 60]
    assert sorted(sizes["gradients"]) == [20, 60]
    assert sorted(sizes["optimizer"]) == [4, 4, 20, 20, 28, 60, 60]
    assert {role.name for role in roles if role.role == "weights"} == {"weight", "bias"}
