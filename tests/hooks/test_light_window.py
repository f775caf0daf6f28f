"""A light window follows a window with operators where a GPU is in use; here the CPU stands in for the GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from perfscope import wire
from perfscope.hooks.capture import Capture
from perfscope.hooks.config import Config
from perfscope.hooks.open_window import OPEN_WINDOW
from perfscope.hooks.profiler import window, window_schedule
from perfscope.hooks.selection import DEFAULT_WINDOWS, WindowChoice, parse_windows


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a light window record what it can without a GPU."""

    def activities(_torch: object) -> list[object]:
        return [torch.profiler.ProfilerActivity.CPU]

    monkeypatch.setattr(window, "find_light_activities", activities)
    monkeypatch.setattr(window_schedule, "find_light_activities", activities)


class Trained:
    """What a training of some steps left behind."""

    def __init__(self, folder: Path, windows: str, choice: WindowChoice, steps: int) -> None:
        capture = Capture(Config(str(folder), parse_windows(windows), nvml_hz=0, window=choice))
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(4))])
        capture.on_step_begin()
        for _ in range(steps):
            torch.ones(8).sum()
            capture.on_optimizer_step(optimizer)
        capture.finish()
        self._folder = folder / "ranks" / "00000"
        self.traces = folder / "traces"

    def _lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self._folder / name).read_text().splitlines()]

    @property
    def labels(self) -> dict[int, str | None]:
        return {line["step"]: line.get("window") for line in self._lines("steps.jsonl")}

    @property
    def windows(self) -> list[tuple[int, int, str]]:
        events = [event for event in self._lines("events.jsonl") if event["kind"] == "window"]
        return [(event["first_step"], event["last_step"], event["activities"]) for event in events]

    @property
    def notes(self) -> list[str]:
        return [event["text"] for event in self._lines("events.jsonl") if event["kind"] == "note"]

    def metadata(self) -> list[tuple[str, dict[str, Any]]]:
        """The folder and the metadata of each trace, in the order of their steps."""
        traces = [(path.parent.name, json.loads(path.read_bytes())) for path in self.traces.rglob("*.json")]
        metadata = [(folder, trace[wire.TRACE_METADATA]) for folder, trace in traces]
        return sorted(metadata, key=lambda entry: int(entry[1]["first_step"]))


def labels(*spans: tuple[Sequence[int], str]) -> dict[int, str]:
    return {step: label for steps, label in spans for step in steps}


@pytest.mark.usefixtures("gpu")
def test_a_light_window_follows_and_steps_around_it_are_labelled_and_its_trace_says_when_its_steps_began(
    tmp_path: Path,
) -> None:
    trained = Trained(tmp_path, "4-6", WindowChoice.BOTH, 14)
    assert trained.windows == [(4, 6, "operators"), (9, 11, "light")]
    assert trained.labels == {
        **dict.fromkeys([1, 2, 13, 14]),
        **labels(([3, 8], "warmup"), ([4, 5, 6, 9, 10, 11], "profiled"), ([7, 12], "export")),
    }
    (_, operators), (folder, light) = trained.metadata()
    assert folder == wire.LIGHT_FOLDER
    assert (operators["activities"], light["activities"]) == ("operators", "light")
    assert (operators["host"], operators["pid"]) == (light["host"], light["pid"])
    assert operators["edges_ns"] == []
    assert len(light["edges_ns"]) == 4
    assert light["edges_ns"] == sorted(light["edges_ns"])


@pytest.mark.usefixtures("gpu")
def test_a_window_that_comes_too_early_for_a_light_one_before_it_is_profiled_as_it_was_asked_for(
    tmp_path: Path,
) -> None:
    trained = Trained(tmp_path, "2-3,6-7", WindowChoice.BOTH, 14)
    assert trained.windows == [(2, 3, "operators"), (6, 7, "operators"), (10, 12, "light")]
    assert trained.notes == ["no light window follows the window 2-3: the next one begins too early for it"]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("choice", "activities"), [(WindowChoice.OPERATORS, "operators"), (WindowChoice.LIGHT, "light")]
)
def test_one_kind_of_window_alone(choice: WindowChoice, activities: str, tmp_path: Path) -> None:
    assert Trained(tmp_path, "4-6", choice, 14).windows == [(4, 6, activities)]


def test_without_a_gpu_there_is_one_window_with_operators(tmp_path: Path) -> None:
    both = Trained(tmp_path / "both", "4-6", WindowChoice.BOTH, 14)
    assert (both.windows, both.notes) == ([(4, 6, "operators")], [])
    light = Trained(tmp_path / "light", "4-6", WindowChoice.LIGHT, 14)
    assert light.windows == [(4, 6, "operators")]
    assert light.notes == ["the window 4-6 records operators: no GPU is in use, so there is no light window"]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("steps", "windows", "notes"),
    [
        (9, [], ["the window 10 is empty: training ended before its first step did"]),
        (12, [(10, 10, "operators")], ["the window 13-15 is empty: training ended before its first step did"]),
        (13, [(10, 10, "operators"), (13, 13, "light")], []),
        (20, [(10, 10, "operators"), (13, 15, "light")], []),
    ],
)
def test_the_default_windows_leave_five_steady_steps_before_them_and_are_over_in_twenty_steps(
    steps: int, windows: list[tuple[int, int, str]], notes: list[str], tmp_path: Path
) -> None:
    trained = Trained(tmp_path, DEFAULT_WINDOWS, WindowChoice.BOTH, steps)
    assert (trained.windows, trained.notes) == (windows, notes)
    unlabelled = [step for step, label in trained.labels.items() if label is None]
    assert [step for step in unlabelled if step < 10] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [step for step in unlabelled if step > 10] == list(range(17, steps + 1))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("function", ["_call_runtime", "_make_config"])
def test_a_failure_in_a_light_window_ends_the_capture_and_leaves_no_profiler_running(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = getattr(window, function)

    def fails(*arguments: object, **options: object) -> object:
        is_light = bool((tmp_path / "traces").exists())
        if is_light:
            raise ValueError("broken on purpose")
        return original(*arguments, **options)

    monkeypatch.setattr(window, function, fails)
    trained = Trained(tmp_path, "4-6", WindowChoice.BOTH, 14)
    assert trained.windows == [(4, 6, "operators")]
    assert "training goes on" in capsys.readouterr().err
    assert not torch.autograd._profiler_enabled()


def test_a_window_is_open_until_its_trace_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other threads see of training meanwhile is the profiler's."""
    write, seen = window.ProfilerWindow._write_trace, list[bool]()

    def look(self: window.ProfilerWindow, export: Any) -> tuple[str, int]:
        seen.append(OPEN_WINDOW.is_open)
        return write(self, export)

    monkeypatch.setattr(window.ProfilerWindow, "_write_trace", look)
    Trained(tmp_path, "3", WindowChoice.OPERATORS, 5)
    assert seen == [True]
    assert not OPEN_WINDOW.is_open
