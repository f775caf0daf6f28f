"""The trace of a window has a mark of each call of a module, without the profiler having been told of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from perfscope.hooks.capture import Capture
from perfscope.hooks.config import Config
from perfscope.hooks.profiler import window
from perfscope.hooks.profiler.trace_marks import Mark
from perfscope.hooks.selection import parse_windows


def train(folder: Path, *, shapes: bool = False, steps: int = 6) -> list[str]:
    """Names of the marks in the trace of the steps 3 and 4; of no trace, none."""
    capture = Capture(Config(str(folder), parse_windows("3-4"), nvml_hz=0, modules=True, shapes=shapes))
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters())
    capture.on_step_begin()
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        capture.on_optimizer_step(optimizer)
    capture.finish()
    names = [
        event["name"]
        for path in (folder / "traces").rglob("[!.]*.json")
        for event in json.loads(path.read_text())["traceEvents"]
        if event.get("cat") == "user_annotation"
    ]
    return [name.removeprefix("nn.Module: ") for name in names if name.startswith("nn.Module: ")]


@pytest.mark.parametrize("shapes", [False, True])
def test_the_steps_of_a_window_are_marked_and_its_warm_up_step_is_not(tmp_path: Path, shapes: bool) -> None:
    assert train(tmp_path, shapes=shapes) == ["Sequential", "0", "1"] * 2


def test_a_trace_of_an_unknown_form_is_kept_and_a_line_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(window, "add_marks", lambda _path, _marks: False)
    assert train(tmp_path) == []
    assert len(list((tmp_path / "traces").glob("*.json"))) == 1
    assert "the modules of the window 3-4 are lost" in capfd.readouterr().err


def test_a_window_is_lost_with_one_line_where_the_disk_is_full_when_marks_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fill(_path: str, _marks: Sequence[Mark]) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(window, "add_marks", fill)
    assert train(tmp_path) == []
    assert not list((tmp_path / "traces").iterdir())
    assert "the window 3-4 is lost: the marks of modules could not be written" in capfd.readouterr().err
