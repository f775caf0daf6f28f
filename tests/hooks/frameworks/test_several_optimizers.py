"""Real trainings of several optimizers: the count of their steps is the true one, and windows profile whole steps."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import SCRIPTS, analysis, profile, step_lines, trace_events
from tests.hooks.frameworks.running import notes, torchrun

pytestmark = pytest.mark.slow


def train(way: str, folder: Path, *options: str) -> Path:
    command: list[str | Path] = [sys.executable, SCRIPTS / "loops.py", way]
    ended = profile(*command, cwd=folder, options=["--exec", *options])
    assert ended.code == 0, ended.stderr
    assert "perfscope: capture ends" not in ended.stderr
    return folder / "RUN"


def steps_of_ranges(run: Path, name: str) -> Counter[str]:
    """How often a range of the trace begins in each profiler step."""
    (trace,) = (run / "traces").glob("*.json*")
    ranges = [event for event in trace_events(trace) if event.get("cat") == "user_annotation"]
    profiled = [event for event in ranges if event["name"].startswith("ProfilerStep#")]
    return Counter(
        step["name"]
        for event in ranges
        for step in profiled
        if event["name"].startswith(name) and step["ts"] <= event["ts"] < step["ts"] + step["dur"]
    )


@pytest.mark.parametrize(
    ("way", "count"),
    [
        ("folds", 20),
        ("in_turn", 36),
        ("groups", 9),
        ("closures", 7),
        ("scaled", 6),
        ("unscaled", 6),
        ("resumed", 10),
    ],
)
def test_the_count_is_the_true_one(way: str, count: int, tmp_path: Path) -> None:
    run = train(way, tmp_path)
    assert [line["step"] for line in step_lines(run)] == list(range(1, count + 1))
    assert {line["samples"] for line in step_lines(run)} == {8}


def test_a_step_of_a_gan_is_the_whole_round(tmp_path: Path) -> None:
    run = train("gan", tmp_path)
    lines = step_lines(run)
    assert [(line["step"], line["boundaries"]) for line in lines] == [(step, 6) for step in range(1, 9)]
    # 5 batches of the loader; generator and discriminator run forward on many more.
    assert {line["samples"] for line in lines} == {40}
    assert steps_of_ranges(run, "Optimizer.step#RMSprop") == {f"ProfilerStep#{step}": 5 for step in (4, 5, 6)}
    assert steps_of_ranges(run, "Optimizer.step#Adam") == {f"ProfilerStep#{step}": 1 for step in (4, 5, 6)}
    results = analysis(run)["results"]["steps"]
    assert results["count"] == 8
    assert results["samples_per_step"] == 40
    assert sum("a step is a whole round" in note for note in results["notes"]) == 1
    assert sum("a step is a whole round" in note for note in notes(run)) == 1


def test_the_ranks_of_a_distributed_gan_agree(tmp_path: Path) -> None:
    run = torchrun(2, "loops.py", "distributed_gan", cwd=tmp_path)
    for rank in range(2):
        lines = step_lines(run, f"{rank:05d}")
        assert [(line["step"], line["boundaries"], line["samples"]) for line in lines] == [
            (step, 4, 24) for step in range(1, 8)
        ]


def test_a_chosen_optimizer_that_never_steps_is_named(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, SCRIPTS / "loops.py", "gan"]
    ended = profile(*command, cwd=tmp_path, options=["--exec", "--step-optimizer", "3"])
    assert ended.code == 0
    assert "--step-optimizer 3: no step was counted, because only 2 stepped" in ended.stderr


def test_the_user_chooses_that_every_optimizer_ends_a_step(tmp_path: Path) -> None:
    run = train("gan", tmp_path, "--step-optimizer", "every", "--steps", "2-3")
    assert len(step_lines(run)) == 48
    assert steps_of_ranges(run, "Optimizer.step#RMSprop") == {f"ProfilerStep#{step}": 1 for step in (2, 3)}


def test_a_window_that_would_begin_too_early_is_moved(tmp_path: Path) -> None:
    run = train("gan", tmp_path, "--steps", "2-3")
    assert steps_of_ranges(run, "Optimizer.step#RMSprop") == {f"ProfilerStep#{step}": 5 for step in (3, 4)}
    assert any("the window 2-3 was moved to 3-4" in note for note in notes(run))


def test_optimizers_that_step_inside_the_backward_pass_get_no_window(tmp_path: Path) -> None:
    ended = profile(sys.executable, SCRIPTS / "loops.py", "in_backward", cwd=tmp_path, options=["--steps", "2-3"])
    assert ended.code == 0, ended.stderr
    assert "no window is profiled: the optimizer steps inside the backward pass" in ended.stderr
    assert [line["step"] for line in step_lines(tmp_path / "RUN")] == list(range(1, 21))
