"""Step times, throughput and what is left out of them, on runs that can be checked by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope import wire
from perfscope.analyzers.steps import analyze
from perfscope.analyzers.steps.result import StepTimes
from perfscope.errors import MissingInput, SourceError
from perfscope.sources.runs.run import read_run

MS = 10**6


def write_run(
    root: Path, walls_ms: dict[int, Sequence[float | None]], *, world_size: int | None = None, **fields: Any
) -> Path:
    """A run whose rank r took walls_ms[r][n] for step n + 1; step 3 is the warm-up, 4 and 5 are profiled."""
    labels = {3: wire.WARMUP, 4: wire.PROFILED, 5: wire.PROFILED, 6: wire.EXPORT}
    (root / wire.RUN_FILE).parent.mkdir(parents=True, exist_ok=True)
    (root / wire.RUN_FILE).write_text(json.dumps({"command": ["train"]}))
    for rank, walls in walls_ms.items():
        folder = root / wire.RANKS_FOLDER / wire.rank_folder(rank)
        folder.mkdir(parents=True)
        record = wire.RankRecord(rank, world_size or len(walls_ms), "host", 1, 0, 0, "3.11")
        (folder / wire.RANK_FILE).write_bytes(wire.to_line(record))
        lines = [
            wire.StepRecord(
                step=step,
                end_ns=step * MS,
                source="optimizer",
                wall_ns=None if wall is None else int(wall * MS),
                window=labels.get(step),
                **fields,
            )
            for step, wall in enumerate(walls, 1)
        ]
        (folder / wire.STEPS_FILE).write_bytes(b"".join(wire.to_line(line) for line in lines))
    return root


def steps_of(run: Path) -> StepTimes:
    return analyze(read_run(run))


def test_the_median_leaves_out_what_start_up_and_windows_affected(tmp_path: Path) -> None:
    steps = steps_of(write_run(tmp_path, {0: [900, 10, 50, 70, 80, 60, 12, 14]}))
    assert steps.count == 8
    assert steps.median_s == pytest.approx(0.012)  # of 10, 12, 14
    assert steps.p95_s == pytest.approx(0.0138)  # 12 + 0.9 x 2: NumPy's linear interpolation
    assert steps.first_s == pytest.approx(0.9)
    assert steps.profiled_s == pytest.approx(0.075)
    assert steps.export_s == pytest.approx(0.060)
    assert any("3 steady-state steps are too few" in note for note in steps.notes)


def test_what_a_window_cost_is_said_and_so_is_a_window_that_was_lost(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [9] * 7, 1: [9] * 4})
    window = wire.WindowRecord(4, 5, "t", start_ns=1 * MS, stop_ns=20 * MS, export_ns=300 * MS, trace_bytes=1)
    (run / wire.RANKS_FOLDER / "00000" / wire.EVENTS_FILE).write_bytes(wire.to_line(window))
    notes = steps_of(run).notes
    stall = "Window 4-5 stalled training for 321 ms (excluded from step times): start 1 ms, stop 20 ms, export 300 ms."
    assert stall in notes
    assert any("Ranks [1] ended while a window was open" in note for note in notes)


def test_a_step_takes_as_long_as_its_slowest_rank(tmp_path: Path) -> None:
    steps = steps_of(write_run(tmp_path, {0: [100, 10, 1, 1, 1, 1, 30], 1: [90, 20, 1, 1, 1, 1, 5]}))
    assert steps.median_s == pytest.approx(0.025)  # of 20 and 30
    assert [rank.median_s for rank in steps.ranks] == [pytest.approx(0.020), pytest.approx(0.0125)]


def test_throughput_is_summed_over_data_parallel_ranks(tmp_path: Path) -> None:
    steps = steps_of(write_run(tmp_path, {0: [9, 10, 9], 1: [9, 10, 9]}, samples=4, tokens=400))
    assert steps.samples_per_s == pytest.approx(2 * 4 / 0.010)
    assert steps.tokens_per_s == pytest.approx(2 * 400 / 0.010)


def test_what_the_framework_states_is_preferred_to_what_was_counted(tmp_path: Path) -> None:
    steps = steps_of(write_run(tmp_path, {0: [9, 10]}, samples=4, global_samples=64))
    assert steps.samples_per_s == pytest.approx(6400)


def test_without_every_rank_there_is_no_sum(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [9, 10]}, world_size=2, samples=4)
    assert steps_of(run).samples_per_s is None
    assert read_run(run).damage == ("1 of 2 ranks never reported: 1",)


def test_tensor_parallel_ranks_work_on_the_same_samples(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [9, 10], 1: [9, 10]}, samples=4)
    for rank in (0, 1):
        parallel = {"coordinates": {"dp": 0, "pp": 0, "tp": rank}}
        (run / wire.RANKS_FOLDER / wire.rank_folder(rank) / wire.PARALLEL_FILE).write_text(json.dumps(parallel))
    assert steps_of(run).samples_per_s == pytest.approx(400)


def test_a_run_too_short_for_a_median_has_none(tmp_path: Path) -> None:
    steps = steps_of(write_run(tmp_path, {0: [None]}))
    assert (steps.count, steps.median_s, steps.p95_s, steps.first_s) == (1, None, None, None)
    assert any(note.startswith("No median") for note in steps.notes)


def test_no_steps_is_a_reason_and_no_zero(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no rank completed a training step"):
        steps_of(write_run(tmp_path, {0: []}))


def test_half_a_line_at_the_end_is_dropped_and_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [9, 10, 9]})
    file = run / wire.RANKS_FOLDER / "00000" / wire.STEPS_FILE
    file.write_bytes(file.read_bytes()[:-20])
    assert steps_of(run).count == 2
    assert read_run(run).damage == ("00000/steps.jsonl: ends in half a line",)


def test_a_restarted_rank_is_not_counted_twice(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [9, 10, 9]})
    again = run / wire.RANKS_FOLDER / wire.rank_folder(0, 1)
    again.mkdir()
    for name in (wire.RANK_FILE, wire.STEPS_FILE):
        (again / name).write_bytes((run / wire.RANKS_FOLDER / "00000" / name).read_bytes())
    steps = steps_of(run)
    assert steps.count == 3
    assert any("started more than once" in note for note in steps.notes)


def test_a_folder_that_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not a run"):
        read_run(tmp_path)


def test_the_table_is_a_data_frame_with_gaps(tmp_path: Path) -> None:
    frame = read_run(write_run(tmp_path, {0: [None, 10]})).steps[0].frame()
    assert list(frame["step"]) == [1, 2]
    assert frame["wall_ns"].isna().tolist() == [True, False]
