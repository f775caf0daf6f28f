"""What perfscope itself cost a run, from records that are written here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import cost
from perfscope.analyzers.cost import Cost
from perfscope.errors import MissingInput
from perfscope.measures.window_effect import Effect, WindowEffect
from perfscope.sources.runs.run import read_run
from perfscope.wire.records import RankRecord, StepRecord, WindowRecord, to_line

MS = 10**6
STEPS: dict[int, dict[str, Any]] = {
    **{step: {"wall_ns": 100 * MS, "hook_ns": 50_000} for step in range(2, 5)},
    5: {"wall_ns": 115 * MS, "window": "warmup"},
    6: {"wall_ns": 140 * MS, "window": "profiled"},
    7: {"wall_ns": 150 * MS, "window": "profiled"},
    8: {"wall_ns": 90 * MS, "window": "export"},
    **{step: {"wall_ns": 104 * MS, "hook_ns": 50_000} for step in range(9, 12)},
}
WINDOW = WindowRecord(
    6,
    7,
    "t.json",
    20 * MS,
    200 * MS,
    150 * MS,
    9 * 10**6,
    release_ns=30 * MS,
    rss_before_bytes=100,
    rss_after_bytes=700,
)


def write_run(folder: Path, windows: list[WindowRecord], steps: dict[int, dict[str, Any]], ranks: int = 1) -> Path:
    for rank in range(ranks):
        place = folder / "ranks" / f"{rank:05d}"
        place.mkdir(parents=True)
        (place / "rank.json").write_bytes(to_line(RankRecord(rank, ranks, "h", 1, 1, 1, "3.12")))
        records = [StepRecord(step, step * 10**9, "optimizer", **facts) for step, facts in steps.items()]
        (place / "steps.jsonl").write_bytes(b"".join(to_line(record) for record in records))
        (place / "events.jsonl").write_bytes(b"".join(to_line(window) for window in windows))
    return folder


def test_steps_around_a_window_and_what_it_held(tmp_path: Path) -> None:
    slow = replace(WINDOW, export_ns=250 * MS, rss_after_bytes=300)
    run_dir = write_run(tmp_path, [WINDOW], STEPS, ranks=2)
    (run_dir / "ranks" / "00001" / "events.jsonl").write_bytes(to_line(slow))
    found = cost.analyze(read_run(run_dir))
    assert (found.before_s, found.after_s, found.undisturbed_s) == pytest.approx((0.1, 0.104, 0.104))
    assert found.hooks_s == pytest.approx(50e-6)
    (window,) = found.windows
    assert window.profiled_s == pytest.approx(0.145)
    assert window.slower == pytest.approx(0.145 / 0.104 - 1)
    assert window.distorted is True
    assert window.held_s == pytest.approx(0.02 + 0.2 + 0.25 + 0.03)  # the rank that was stalled longest
    assert (window.trace_bytes, window.memory_bytes) == (18 * 10**6, 600)
    text = " ".join(note for section in found.sections() for note in section.notes)
    assert "100.00 ms before the first window (2 steps), 104.00 ms after it (3 steps): too few to compare." in text
    assert "50 us per median step" in text
    assert "6-7" in text


@pytest.mark.parametrize(
    ("verdict", "after_s", "words"),
    [
        (Effect.SLOWER, 0.104, "+4.0%"),
        (Effect.NO_DIFFERENCE, 0.104, "+4.0%, within the noise of the steps"),
        (Effect.NO_DIFFERENCE, 0.101, "+1.0%"),
    ],
)
def test_the_change_behind_a_window_is_what_its_test_says(verdict: Effect, after_s: float, words: str) -> None:
    effect = WindowEffect(verdict, 20, 20, 0.1, after_s, change_low=-0.01, change_high=0.05)
    found = Cost(0.1, after_s, 0.1, None, (), effect=effect)
    (section,) = found.sections()
    change = f"100.00 ms before the first window (20 steps), {after_s * 1000:.2f} ms after it (20 steps): {words}."
    assert any(change in note for note in section.notes)


@pytest.mark.parametrize(
    ("states", "detached", "words"),
    [
        ([True, True], True, "CUPTI was detached at the end of every window"),
        ([True, False], False, "CUPTI stayed attached after a window"),
        ([True, None], None, None),
    ],
)
def test_whether_a_window_left_anything_behind_is_said(
    states: list[bool | None], detached: bool | None, words: str | None, tmp_path: Path
) -> None:
    windows = [
        replace(WINDOW, detached=state, attached_because="as the test says" if state is False else None)
        for state in states
    ]
    result = cost.analyze(read_run(write_run(tmp_path, windows, STEPS)))
    assert result.cupti_detached is detached
    notes = [note for section in result.sections() for note in section.notes if "CUPTI" in note]
    assert [note for note in notes if words is not None and words in note] == notes
    assert len(notes) == (0 if words is None else 1)
    assert any("as the test says" in note for note in notes) == (detached is False)


def test_what_is_not_known_is_absent(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    nothing = cost.analyze(read_run(write_run(tmp_path / "a", [], {1: {}, 2: {"wall_ns": 5}})))
    assert (nothing.before_s, nothing.hooks_s, nothing.windows) == (None, None, ())
    old = replace(WINDOW, release_ns=None, rss_before_bytes=None)
    only = {step: facts for step, facts in STEPS.items() if step < 9 and step > 4}
    (window,) = cost.analyze(read_run(write_run(tmp_path / "b", [old], only))).windows
    assert (window.slower, window.distorted, window.release_s, window.memory_bytes) == (
        None,
        None,
        None,
        None,
    )
    (tmp_path / "c" / "ranks").mkdir(parents=True)
    with pytest.raises(MissingInput, match="no training step was recorded"):
        cost.analyze(read_run(tmp_path / "c"))


LIGHT_STEPS = {**STEPS, 12: {"wall_ns": 90 * MS, "window": "warmup"}, 13: {"wall_ns": 112 * MS, "window": "profiled"}}
WINDOWS = [
    replace(WINDOW, activities="operators"),
    replace(WINDOW, first_step=13, last_step=13, trace="light/t.json", activities="light"),
]


def test_a_light_window_is_judged_by_itself(tmp_path: Path) -> None:
    found = cost.analyze(read_run(write_run(tmp_path, WINDOWS, LIGHT_STEPS)))
    assert [window.name for window in found.windows] == ["6-7 (operators)", "13 (light)"]
    assert found.largest_distortion("operators") == pytest.approx(0.145 / 0.104 - 1)
    assert found.largest_distortion("light") is None  # 8 % are representative
