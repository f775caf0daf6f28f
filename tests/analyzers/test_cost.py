"""What perfscope itself cost a run, from records that are written here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.analyzers import cost
from perfscope.analyzers.cost.corrected import derive
from perfscope.analyzers.cost.result import Cost
from perfscope.analyzers.shared.window_effect import Verdict, WindowEffect
from perfscope.errors import MissingInput
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
    assert (found.before_s, found.after_s, found.steady_s) == pytest.approx((0.1, 0.104, 0.104))
    assert found.hooks_s == pytest.approx(50e-6)
    (window,) = found.windows
    assert window.profiled_s == pytest.approx(0.145)
    assert window.slowdown == pytest.approx(0.145 / 0.104 - 1)
    assert window.is_representative is False
    assert window.stall_s == pytest.approx(0.02 + 0.2 + 0.25 + 0.03)  # the rank that was stalled longest
    assert (window.trace_bytes, window.memory_bytes) == (18 * 10**6, 600)
    text = " ".join(note for section in found.sections() for note in section.notes)
    assert "100.00 ms before the first window (2 steps), 104.00 ms after it (3 steps): too few to compare." in text
    assert "50 us per median step" in text
    assert "6-7" in text


@pytest.mark.parametrize(
    ("verdict", "after_s", "words"),
    [
        (Verdict.SLOWER, 0.104, "+4.0%"),
        (Verdict.NO_DIFFERENCE, 0.104, "+4.0%, within the noise of the steps"),
        (Verdict.NO_DIFFERENCE, 0.101, "+1.0%"),
    ],
)
def test_the_change_behind_a_window_is_what_its_test_says(verdict: Verdict, after_s: float, words: str) -> None:
    effect = WindowEffect(verdict, 20, 20, 0.1, after_s, low=-0.01, high=0.05)
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
    assert result.data()["cupti_detached"] is detached  # type: ignore[index,call-overload]
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
    assert (window.slowdown, window.is_representative, window.release_s, window.memory_bytes) == (
        None,
        None,
        None,
        None,
    )
    (tmp_path / "c" / "ranks").mkdir(parents=True)
    with pytest.raises(MissingInput, match="no training step was recorded"):
        cost.analyze(read_run(tmp_path / "c"))


def test_shares_of_a_slowed_window_are_corrected(tmp_path: Path) -> None:
    found = cost.analyze(read_run(write_run(tmp_path, [WINDOW], STEPS)))
    parts = SimpleNamespace(
        compute=51 * MS, exposed_communication=60 * MS, communication=60 * MS, exposed_copy=10.2 * MS
    )
    long = SimpleNamespace(compute=103 * MS, exposed_communication=0, communication=0, exposed_copy=0)
    rank = SimpleNamespace(
        rank=0, device=0, activities="", steps=[SimpleNamespace(parts=parts), SimpleNamespace(parts=parts)]
    )
    busy = SimpleNamespace(rank=0, device=1, activities="", steps=[SimpleNamespace(parts=long)])
    steps: Any = SimpleNamespace(step_time_s=0.102, ranks=[SimpleNamespace(rank=0)])
    breakdown: Any = SimpleNamespace(ranks=[rank, busy])
    corrected = derive(found, steps, breakdown)
    assert corrected is not None
    one, two = corrected.ranks
    assert (one.compute, one.exposed_copy, one.rest) == pytest.approx((0.5, 0.1, 0.4))
    assert two.rest is None
    assert "longer than a steady-state step" in corrected.sections()[0].notes[1]
    kept = Cost(0.1, 0.1, 0.1, None, tuple(replace(window, slowdown=0.02) for window in found.windows))
    assert derive(kept, steps, breakdown) is None


LIGHT_STEPS = {**STEPS, 12: {"wall_ns": 90 * MS, "window": "warmup"}, 13: {"wall_ns": 112 * MS, "window": "profiled"}}
WINDOWS = [
    replace(WINDOW, activities="operators"),
    replace(WINDOW, first_step=13, last_step=13, trace="light/t.json", activities="light"),
]


def shares(activities: str, cost_of_run: Cost) -> Any:
    parts = SimpleNamespace(
        compute=51 * MS, exposed_communication=20.4 * MS, communication=30 * MS, exposed_copy=10.2 * MS
    )
    rank = SimpleNamespace(rank=0, device=0, activities=activities, steps=[SimpleNamespace(parts=parts)])
    steps: Any = SimpleNamespace(step_time_s=0.102, ranks=[SimpleNamespace(rank=0)])
    breakdown: Any = SimpleNamespace(ranks=[rank])
    return derive(cost_of_run, steps, breakdown)


def test_a_light_window_is_judged_by_itself_and_its_idle_time_is_apart(tmp_path: Path) -> None:
    found = cost.analyze(read_run(write_run(tmp_path, WINDOWS, LIGHT_STEPS)))
    assert [window.name for window in found.windows] == ["6-7 (operators)", "13 (light)"]
    assert found.largest_slowdown("operators") == pytest.approx(0.145 / 0.104 - 1)
    assert found.largest_slowdown("light") == pytest.approx(0.112 / 0.104 - 1)
    corrected = shares("light", found)
    (rank,) = corrected.ranks
    assert (rank.compute, rank.exposed_copy, rank.exposed_communication, rank.idle) == pytest.approx(
        (0.5, 0.1, 0.2, 0.2)
    )
    assert rank.compute + rank.exposed_copy + rank.exposed_communication + rank.idle == pytest.approx(1)
    assert [column.heading for column in corrected.sections()[0].columns][-2:] == ["Exposed comm. (%)", "Idle (%)"]
    assert shares("operators", found).ranks[0].idle is None


def test_a_light_window_that_hardly_slowed_its_steps_needs_no_correction(tmp_path: Path) -> None:
    quick = {**LIGHT_STEPS, 13: {"wall_ns": 103 * MS, "window": "profiled"}}
    found = cost.analyze(read_run(write_run(tmp_path, WINDOWS, quick)))
    assert shares("light", found) is None
    assert shares("operators", found) is not None


def test_communication_and_compute_of_more_than_a_step_are_not_corrected(tmp_path: Path) -> None:
    found = cost.analyze(read_run(write_run(tmp_path, WINDOWS, LIGHT_STEPS)))
    parts = SimpleNamespace(compute=90 * MS, exposed_communication=20 * MS, communication=20 * MS, exposed_copy=0)
    rank = SimpleNamespace(rank=0, device=0, activities="light", steps=[SimpleNamespace(parts=parts)])
    steps: Any = SimpleNamespace(step_time_s=0.102, ranks=[SimpleNamespace(rank=0)])
    breakdown: Any = SimpleNamespace(ranks=[rank])
    corrected = derive(found, steps, breakdown)
    assert corrected is not None
    assert (corrected.ranks[0].rest, corrected.ranks[0].idle) == (None, None)


def test_a_light_window_that_slowed_its_steps_much_leaves_communication_with_idle_time(tmp_path: Path) -> None:
    slow = {**LIGHT_STEPS, 13: {"wall_ns": 130 * MS, "window": "profiled"}}
    found = cost.analyze(read_run(write_run(tmp_path, WINDOWS, slow)))
    (rank,) = shares("light", found).ranks
    assert (rank.compute, rank.rest) == pytest.approx((0.5, 0.4))
    assert (rank.exposed_communication, rank.idle) == (None, None)


def test_compute_beside_communication_makes_the_corrected_share_an_upper_bound(tmp_path: Path) -> None:
    """9.6 ms of the communication were hidden behind 51 ms of compute, where kernels are slower."""
    found = cost.analyze(read_run(write_run(tmp_path, WINDOWS, LIGHT_STEPS)))
    corrected = shares("operators", found)
    assert corrected.ranks[0].beside == pytest.approx(9.6 / 51)
    text = " ".join(corrected.sections()[0].notes)
    assert "Compute is an upper bound: up to 19% of it ran beside communication" in text
    assert corrected.data()["ranks"][0]["compute_beside_communication"] == pytest.approx(9.6 / 51)
    # A light window slows no rank that a collective would wait for.
    assert "upper bound" not in " ".join(shares("light", found).sections()[0].notes)


def test_a_single_step_has_no_percent(tmp_path: Path) -> None:
    steps = {number: values for number, values in STEPS.items() if number not in (2, 3, 4, 8, 9, 10)}
    found = cost.analyze(read_run(write_run(tmp_path, [WINDOW], steps)))
    assert found.windows[0].slowdown is None
    assert found.windows[0].is_representative is None
    effect = WindowEffect(Verdict.UNTESTED, 1, 30, 0.1, 0.104, reason="1 step before the window")
    assert effect.change is None
    (section,) = Cost(0.1, 0.104, 0.1, None, (), effect=effect).sections()
    change = "100.00 ms before the first window (1 step), 104.00 ms after it (30 steps): too few to compare."
    assert any(change in note for note in section.notes)
