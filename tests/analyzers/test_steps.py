"""Step times, throughput and what is left out of them, on runs that can be checked by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope import wire
from perfscope.analyzers.cost import analyze as analyze_cost
from perfscope.analyzers.steps import StepTimes, analyze
from perfscope.errors import MissingInput
from perfscope.sources.runs.run import read_run
from perfscope.wire.records import RankRecord, Span, StepRecord, WindowRecord, to_line

MS = 10**6
LABELS = {3: wire.WARMUP, 4: wire.PROFILED, 5: wire.PROFILED, 6: wire.EXPORT}


def write_run(
    root: Path,
    walls_ms: Mapping[int, Sequence[float | None]],
    *,
    world_size: int | None = None,
    labels: dict[int, str] = LABELS,
    starts_ms: Sequence[float] = (),
    **fields: Any,
) -> Path:
    """A run whose rank r took walls_ms[r][n] for step n + 1; step 3 is the warm-up, 4 and 5 are profiled."""
    (root / wire.RUN_FILE).parent.mkdir(parents=True, exist_ok=True)
    (root / wire.RUN_FILE).write_text(json.dumps({"command": ["train"]}))
    for rank, walls in walls_ms.items():
        folder = root / wire.RANKS_FOLDER / wire.rank_folder(rank)
        folder.mkdir(parents=True)
        record = RankRecord(rank, world_size or len(walls_ms), "host", 1, 0, 0, "3.11")
        (folder / wire.RANK_FILE).write_bytes(to_line(record))
        start_ms = starts_ms[rank] if starts_ms else 0
        ends_ms = start_ms + np.cumsum([wall or 0.0 for wall in walls])
        lines = [
            StepRecord(
                step=step,
                end_ns=int(ends_ms[step - 1] * MS),
                source="optimizer",
                wall_ns=None if wall is None else int(wall * MS),
                window=labels.get(step),
                **fields,
            )
            for step, wall in enumerate(walls, 1)
        ]
        (folder / wire.STEPS_FILE).write_bytes(b"".join(to_line(line) for line in lines))
    return root


def steps_of(run: Path) -> StepTimes:
    return analyze(read_run(run))


def test_the_step_time_leaves_out_what_start_up_and_windows_affected(tmp_path: Path) -> None:
    steps = steps_of(write_run(tmp_path, {0: [900, 17, 50, 70, 80, 60, 12, 14, 11, 12, 13, 22]}))
    assert steps.count == 12
    assert steps.step_time_s == pytest.approx(0.014)  # 84 over 6
    assert steps.median_s == pytest.approx(0.0125)  # of 11, 12, 12, 13, 14, 22
    assert steps.p95_s == pytest.approx(0.020)  # 14 + 0.75 x 8: NumPy's linear interpolation
    assert steps.first_s == pytest.approx(0.9)
    assert steps.profiled_s == pytest.approx(0.075)
    assert steps.export_s == pytest.approx(0.060)


def test_a_window_that_was_lost_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [9] * 7, 1: [9] * 4})
    window = WindowRecord(4, 5, "t", start_ns=1 * MS, stop_ns=20 * MS, export_ns=300 * MS, trace_bytes=1)
    (run / wire.RANKS_FOLDER / "00000" / wire.EVENTS_FILE).write_bytes(to_line(window))
    assert any("Ranks [1] ended while a window was open" in note for note in steps_of(run).notes)


def jittering(ranks: int, steps: int, mean_ms: float, ahead_ms: float) -> tuple[dict[int, list[float]], list[float]]:
    """Ranks whose steps end together but for what their hosts are ahead: their times, and when each starts."""
    generator = np.random.default_rng(ranks)
    ends_ms = 1000 + mean_ms * np.arange(steps + 1) - generator.uniform(0, ahead_ms, (ranks, steps + 1))
    return {rank: np.diff(ends_ms[rank]).tolist() for rank in range(ranks)}, ends_ms[:, 0].tolist()


def test_ranks_that_run_ahead_by_different_amounts_do_not_lengthen_the_step(tmp_path: Path) -> None:
    walls, starts = jittering(ranks=8, steps=200, mean_ms=100, ahead_ms=60)
    steps = steps_of(write_run(tmp_path, walls, labels={}, starts_ms=starts, samples=4))
    slowest_ms = np.max([walls[rank][2:] for rank in walls], axis=0)
    assert np.median(slowest_ms) > 1.2 * 100  # what the longest of the ranks would say
    assert steps.step_time_s == pytest.approx(0.100, rel=0.001)
    assert steps.median_s == pytest.approx(0.100, rel=0.01)
    assert steps.samples_per_s == pytest.approx(8 * 4 / 0.100, rel=0.001)
    assert [rank.step_time_s for rank in steps.ranks] == [pytest.approx(0.100, rel=0.005)] * 8
    assert not any("disagree" in note for note in steps.notes)


@pytest.mark.parametrize("apart_ms", [0, 10**6], ids=["one clock", "each host its own"])
def test_the_step_time_is_that_of_every_rank_also_where_steps_are_not_contiguous(tmp_path: Path, apart_ms: int) -> None:
    labels = dict.fromkeys((9, 10, 20), wire.PROFILED)
    walls, starts = jittering(ranks=4, steps=40, mean_ms=50, ahead_ms=20)
    for step in labels:
        for rank in walls:
            walls[rank][step - 1] += 500
    starts = [start + rank * apart_ms for rank, start in enumerate(starts)]
    steps = steps_of(write_run(tmp_path, walls, labels=labels, starts_ms=starts))
    assert [rank.undisturbed for rank in steps.ranks] == [35] * 4
    assert steps.step_time_s == pytest.approx(0.050, rel=0.02)
    assert [rank.step_time_s for rank in steps.ranks] == [pytest.approx(steps.step_time_s, rel=0.03)] * 4
    assert len(steps.undisturbed_ns) == 35
    assert sum(steps.undisturbed_ns) / 35 / 1e9 == pytest.approx(steps.step_time_s)


def test_ranks_with_different_numbers_of_steps_are_compared_over_those_that_all_have(tmp_path: Path) -> None:
    """Rank 1 lost its last records, in which rank 0 became slow."""
    steps = steps_of(write_run(tmp_path, {0: [90, *[10] * 9, *[30] * 9], 1: [90, *[10] * 9]}, labels={}))
    assert [rank.count for rank in steps.ranks] == [19, 10]
    assert [rank.undisturbed for rank in steps.ranks] == [8, 8]
    assert steps.step_time_s == pytest.approx(0.010)
    assert (
        "Ranks completed different numbers of steps: 10 to 19. Step times are over those that all have." in steps.notes
    )


@pytest.mark.parametrize("later", [0, 1, 3])
def test_fewer_than_five_steady_steps_give_no_figure_and_say_what_would(tmp_path: Path, later: int) -> None:
    steps = steps_of(write_run(tmp_path, {0: [90, 20, 50, 70, 80, 60, *[10] * later]}, samples=4))
    assert (steps.step_time_s, steps.median_s, steps.p95_s, steps.samples_per_s) == (None, None, None, None)
    assert (steps.undisturbed_ns, steps.ranks[0].undisturbed) == ((), 0)
    assert steps.samples_per_step == 4
    assert steps.profiled_s == pytest.approx(0.075)
    (note,) = (note for note in steps.notes if note.startswith("No step time"))
    assert f"{later + 1} steady-state step" in note  # with the second one, where steps are few
    assert f"Train for at least {4 - later} more step" in note
    assert "`--steps`" in note


@pytest.mark.parametrize("has_device", [True, False])
def test_steps_that_only_fill_the_queue_of_a_device_are_no_steps_of_it(tmp_path: Path, has_device: bool) -> None:
    """Behind its start and a window a host launches three steps in the time of half a one."""
    walls = [900, 5, 5, 6, *noisy(30, 20), 40, 45, 45, 9, 5, 6, *noisy(30, 20)]
    labels = {25: wire.WARMUP, 26: wire.PROFILED, 27: wire.PROFILED, 28: wire.EXPORT}
    fields: dict[str, Any] = {"memory_peak_bytes": 10**9} if has_device else {}
    steps = steps_of(write_run(tmp_path, {0: walls}, labels=labels, **fields))
    assert (steps.step_time_s == pytest.approx(0.030, rel=0.001)) == has_device
    assert any("4 in which hosts only ran ahead" in note for note in steps.notes) == has_device


def test_steps_ahead_of_a_device_count_where_a_wait_for_it_makes_up_for_them(tmp_path: Path) -> None:
    """nanoGPT on an H200 reads the loss of every tenth step: that step waits for the queue that three others filled."""
    walls = [900, *([100, 20, 20, 25, *noisy(41, 6)] * 8)]
    steps = steps_of(write_run(tmp_path, {0: walls}, labels={}, memory_peak_bytes=10**9))
    assert steps.step_time_s == pytest.approx(0.0411, rel=0.02)
    assert not any("ran ahead" in note for note in steps.notes)


def test_throughput_of_steps_with_different_work_is_their_sum_over_their_time(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [9, 9, *[10] * 10]}, labels={}, tokens=400)
    file = run / wire.RANKS_FOLDER / "00000" / wire.STEPS_FILE
    records = [json.loads(line) for line in file.read_text().splitlines()]
    records[6] |= {"tokens": 200, "wall_ns": 5 * MS}
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert steps_of(run).tokens_per_s == pytest.approx((9 * 400 + 200) / 0.095)


def test_without_every_rank_there_is_no_sum(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [9, *[10] * 7]}, labels={}, world_size=2, samples=4)
    assert steps_of(run).samples_per_s is None
    assert read_run(run).damage == ("1 of 2 ranks never reported: 1",)


#: The layouts of eight ranks as hooks write them, and how many times a rank's samples and tokens count.
LAYOUTS: list[tuple[dict[str, tuple[int, ...]], int, int]] = [
    ({"dp": (0, 1, 2, 3, 4, 5, 6, 7)}, 8, 8),
    ({"dp": (0, 1, 2, 3, 4, 5, 6, 7), "ep": (0, 1, 2, 3, 0, 1, 2, 3)}, 8, 8),
    ({"dp": (0, 0, 1, 1, 2, 2, 3, 3), "tp": (0, 1) * 4, "ep": (0, 1, 2, 3, 4, 5, 6, 7)}, 4, 4),
    ({"dp": (0, 0, 1, 1, 2, 2, 3, 3), "cp": (0, 1) * 4}, 4, 8),
    ({"dp": (0, 1, 2, 3) * 2, "pp": (0,) * 4 + (1,) * 4, "ep": (0, 1, 0, 1) * 2}, 4, 4),
    ({"pp": (0,) * 4 + (1,) * 4, "cp": (0, 0, 1, 1) * 2, "tp": (0, 1) * 4}, 1, 2),
]


@pytest.mark.parametrize(("places", "samples", "tokens"), LAYOUTS)
def test_ranks_count_once_for_what_they_share(
    places: dict[str, tuple[int, ...]], samples: int, tokens: int, tmp_path: Path
) -> None:
    run = write_run(tmp_path, {rank: [10.0] * 12 for rank in range(8)}, samples=4, tokens=400)
    for rank in range(8):
        parallel = {"coordinates": {axis: indices[rank] for axis, indices in places.items()}}
        (run / wire.RANKS_FOLDER / wire.rank_folder(rank) / wire.PARALLEL_FILE).write_text(json.dumps(parallel))
    steps = steps_of(run)
    assert steps.samples_per_s == pytest.approx(samples * 4 / 0.010)
    assert steps.tokens_per_s == pytest.approx(tokens * 400 / 0.010)


def test_no_steps_is_a_reason_and_no_zero(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no training step was recorded"):
        steps_of(write_run(tmp_path, {0: []}))


def test_a_restarted_rank_is_not_counted_twice(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [9, 10, 9]})
    again = run / wire.RANKS_FOLDER / wire.rank_folder(0, 1)
    again.mkdir()
    for name in (wire.RANK_FILE, wire.STEPS_FILE):
        (again / name).write_bytes((run / wire.RANKS_FOLDER / "00000" / name).read_bytes())
    steps = steps_of(run)
    assert steps.count == 3
    assert any("started more than once" in note for note in steps.notes)


def long_run(root: Path, before: Sequence[float], behind: Sequence[float], **fields: Any) -> Path:
    """A run with a window of two steps, these steps before it, and these behind it."""
    number = 2 + len(before)
    window = {number: wire.WARMUP, number + 1: wire.PROFILED, number + 2: wire.PROFILED, number + 3: wire.EXPORT}
    walls = [900, *before, 80, 90, 90, 70, *behind]
    return write_run(root, {0: walls}, labels=window, **fields)


def noisy(median_ms: float, count: int) -> list[float]:
    """Times around a median, 1 % up and down."""
    return [median_ms * (1 + 0.01 * ((7 * number) % 5 - 2) / 2) for number in range(count)]


def test_where_a_window_slowed_the_steps_behind_it_every_figure_is_of_those_before(tmp_path: Path) -> None:
    run = read_run(long_run(tmp_path, noisy(20, 15), noisy(26, 40), samples=4))
    steps = analyze(run)
    assert steps.median_s == pytest.approx(0.020, rel=0.01)
    assert steps.samples_per_s == pytest.approx(4 / 0.020, rel=0.01)
    assert steps.ranks[0].undisturbed == 14
    assert steps.window_effect is not None
    assert steps.window_effect.after_s == pytest.approx(0.026, rel=0.01)
    assert any(note.startswith("The window slowed the steps after it: median 26.00 ms") for note in steps.notes)
    cost = analyze_cost(run)
    assert cost.undisturbed_s == steps.median_s
    assert (cost.before_s, cost.after_s) == (steps.window_effect.before_s, steps.window_effect.after_s)


def test_a_window_on_one_rank_disturbs_the_steps_of_all(tmp_path: Path) -> None:
    """Rank 1 is not profiled and waits for rank 0, which is."""
    run = write_run(tmp_path, {0: [9, 10, 50, 70, 80, 60, *[10] * 5], 1: [9, 10, 49, 69, 79, 59, *[10] * 5]})
    lines = (run / wire.RANKS_FOLDER / "00001" / wire.STEPS_FILE).read_text().splitlines()
    records = [json.loads(line) for line in lines]
    plain = [json.dumps({key: value for key, value in record.items() if key != "window"}) for record in records]
    (run / wire.RANKS_FOLDER / "00001" / wire.STEPS_FILE).write_text("".join(f"{line}\n" for line in plain))
    steps = steps_of(run)
    assert steps.median_s == pytest.approx(0.010)
    assert [rank.undisturbed for rank in steps.ranks] == [5, 5]


def test_a_step_with_a_validation_is_shown_apart_and_in_no_median(tmp_path: Path) -> None:
    run = long_run(tmp_path, noisy(20, 15), noisy(20, 15))
    file = run / wire.RANKS_FOLDER / "00000" / wire.STEPS_FILE
    records = [json.loads(line) for line in file.read_text().splitlines()]
    records[4] |= {"no_grad_ns": 500 * MS, "wall_ns": 7 * MS}
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    steps = steps_of(run)
    assert steps.ranks[0].undisturbed == 28
    assert steps.median_s == pytest.approx(0.020, rel=0.01)
    assert any(note.startswith("Validation or generation ran for 0.50 s in 1 step:") for note in steps.notes)


def test_time_without_gradients_in_most_steps_is_a_part_of_the_step(tmp_path: Path) -> None:
    """As in reinforcement learning, where a step generates before it trains."""
    steps = steps_of(write_run(tmp_path, {0: [5] * 20}, labels={}, no_grad_ns=15 * MS))
    assert steps.median_s == pytest.approx(0.020)
    assert steps.ranks[0].undisturbed == 18


def test_a_window_that_was_not_reached_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [9] * 8}, labels={})
    (run / wire.RUN_FILE).write_text(json.dumps({"command": ["train"], "windows": [[20, 22]]}))
    steps = steps_of(run)
    assert "Window 20-22 was not reached: training ended after step 8; `--steps` takes earlier ones." in steps.notes
    (run / wire.RUN_FILE).write_text(json.dumps({"command": ["train"], "windows": [[2, 4]]}))
    assert not any("not reached" in note for note in steps_of(run).notes)


def test_what_steps_lose_beside_their_work_by_hand(tmp_path: Path) -> None:
    """Undisturbed are 16 of the steps 3 to 20: two compile. Compilation and emptied caches count behind step 5."""
    run = write_run(tmp_path, {0: [10] * 20}, labels={}, data_wait_ns=MS)
    file = run / wire.RANKS_FOLDER / "00000" / wire.STEPS_FILE
    records = [json.loads(line) for line in file.read_text().splitlines()]
    records[9]["data_wait_ns"] = 10 * MS
    for step, retries in ((4, 1), (6, 2), (8, 5), (16, 7)):
        records[step - 1]["alloc_retries"] = retries
    for step, kind, ms in ((4, wire.COMPILATION, 6), (9, wire.COMPILATION, 3), (12, wire.GARBAGE, 9)):
        end_ns = records[step - 1]["end_ns"]
        records[step - 1]["spans"] = [Span(kind, end_ns - ms * MS, end_ns)]
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    means = steps_of(run).ranks[0].means
    assert means.data_wait_s == pytest.approx((15 + 10) / 16 / 1000)
    assert [means.data_wait_low_s, means.data_wait_high_s] == pytest.approx([0.001, 0.001])
    assert [means.garbage_s, means.garbage_steps] == pytest.approx([0.009 / 16, 1])
    assert [means.compile_s, means.compiled_steps] == pytest.approx([0.0002, 1])
    assert means.alloc_retries == pytest.approx(0.5)  # five from step 6 to step 16
