"""The wall clock of runs on disk: whole numbers that add up, what is not known, and what slowed the slowest steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope import wire
from perfscope.analyzers.wall_clock import analyze
from perfscope.analyzers.wall_clock.ledger import keep_ledger
from perfscope.analyzers.wall_clock.slowest import find_slowest_steps
from perfscope.errors import MissingInput
from perfscope.sources.runs.run import read_run
from perfscope.wire.records import CheckpointRecord, Span, StepRecord, to_line
from tests.analyzers.test_steps import MS, write_run
from tests.analyzers.wall_clock.making import life, step_record
from tests.conftest import ROOT

RUNS = sorted(path.parent for path in (ROOT / "fixtures" / "runs").glob("*/ranks"))
#: Runs whose hooks did not record the life of a process yet.
EARLIER_RUNS = [run for run in RUNS if run.name.startswith("h200_")]


def data(run: Path) -> dict[str, Any]:
    """The JSON of a run's wall clock."""
    document: dict[str, Any] = json.loads(json.dumps(analyze(read_run(run)).data()))
    return document


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_on_real_runs_the_parts_add_up(run: Path) -> None:
    clock = data(run)
    for rank in clock["ranks"]:
        assert sum(part_ns for part_ns in rank["parts_ns"].values() if part_ns is not None) == rank["wall_ns"]
        assert rank["start_recorded"] == (run not in EARLIER_RUNS)
    assert clock["wall_s"] == max(rank["wall_ns"] for rank in clock["ranks"]) / 1e9
    assert sum(part["s"] for part in clock["parts"]) == pytest.approx(clock["wall_s"])
    assert [part["s"] for part in clock["parts"]] == sorted((part["s"] for part in clock["parts"]), reverse=True)


@pytest.mark.parametrize("run", EARLIER_RUNS, ids=lambda path: path.name)
def test_on_earlier_runs_what_was_not_recorded_is_null(run: Path) -> None:
    clock = data(run)
    for rank in clock["ranks"]:
        assert rank["parts_ns"]["validation"] is None
        assert rank["parts_ns"]["imports"] is None
    assert any("start of the process was not recorded" in note for note in clock["notes"])
    assert any("did not record validation" in note for note in clock["notes"])


def test_the_table_ends_with_the_whole_and_has_the_median_rank_beside_the_slowest(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [20, 10, 10], 1: [30, 10, 10], 2: [90, 10, 10]}, labels={})
    clock = analyze(read_run(run))
    (table, *_) = clock.sections()
    assert [column.heading for column in table.columns] == ["Part", "Rank 2 (s)", "Share (%)", "Rank 1 (s)"]
    assert table.rows[-1][0] == "all"
    assert table.rows[-1][1] == pytest.approx(sum(float(row[1] or 0) for row in table.rows[:-1]))


def test_a_run_without_a_step_has_no_wall_clock(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no training step was recorded"):
        analyze(read_run(write_run(tmp_path, {0: []})))


def test_a_killed_process_ends_with_its_last_record_and_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [0.5] * 9}, labels={})
    save = CheckpointRecord(9 * MS, 14 * MS, "torch.save")
    (run / wire.RANKS_FOLDER / "00000" / wire.CHECKPOINTS_FILE).write_bytes(to_line(save))
    clock = data(run)
    assert any(note.startswith("The end was not recorded") for note in clock["notes"])
    (rank,) = clock["ranks"]
    assert rank["wall_ns"] == 14 * MS - MS // 2  # from the beginning of the first step to the end of the save
    assert rank["parts_ns"]["saves"] == 5 * MS
    assert rank["parts_ns"]["end"] is None


def test_every_process_of_a_rank_that_restarted_has_a_wall_time(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [9, 10, 9]})
    again = run / wire.RANKS_FOLDER / wire.rank_folder(0, 1)
    again.mkdir()
    for name in (wire.RANK_FILE, wire.STEPS_FILE):
        (again / name).write_bytes((run / wire.RANKS_FOLDER / "00000" / name).read_bytes())
    assert [(rank["rank"], rank["attempt"]) for rank in data(run)["ranks"]] == [(0, 0), (0, 1)]


def slow_causes(records: list[StepRecord], **lived: Any) -> dict[int, str]:
    """The slowest steps of one process, with their causes."""
    timeline, steps = life(records, hooked=0, **lived)
    ledger = keep_ledger(timeline, steps, [])
    assert int(np.sum(ledger.step_ns)) <= ledger.wall_ns
    return {slow.step: slow.cause for slow in find_slowest_steps([(ledger, steps)])}


def records_with(step: int, extra: int, **fields: Any) -> list[StepRecord]:
    """Twelve steps of 100 ns, of which one takes longer, with these fields."""
    records, now = [], 0
    for number in range(1, 13):
        length = 100 + (extra if number == step else 0)
        records.append(step_record(number, now, now + length, **(fields if number == step else {})))
        now += length
    return records


@pytest.mark.parametrize(
    ("fields", "kind", "cause"),
    [
        ({}, None, "unexplained"),
        ({"data_wait_ns": 400}, None, "data wait"),
        ({"no_grad_ns": 400}, wire.VALIDATION, "validation"),
        ({"no_grad_ns": 400}, wire.GENERATION, "generation"),
        ({}, wire.COMPILATION, "compilation"),
        ({"save_ns": 400}, "save", "checkpoint save"),
        ({"gap_ns": 400}, None, "between steps, unattributed"),
        ({"hook_ns": 400}, None, "hooks of perfscope"),
        ({"window": "profiled"}, None, "profiler window"),
        ({"data_wait_ns": 200}, None, "unexplained"),  # half of the excess is no explanation
    ],
)
def test_a_slow_step_has_the_cause_that_was_put_in(fields: dict[str, Any], kind: str | None, cause: str) -> None:
    records = records_with(7, 400, **fields)
    spans = [(kind, 600, 1000, 0)] if kind not in (None, "save") else []
    saves = [(600, 1000)] if kind == "save" else []
    assert slow_causes(records, spans=spans, saves=saves) == {7: cause}


def test_even_steps_have_no_slowest() -> None:
    assert slow_causes(records_with(0, 0)) == {}


def test_the_first_step_and_its_compilation_are_told_apart() -> None:
    assert slow_causes(records_with(1, 900)) == {1: "first step"}
    assert slow_causes(records_with(1, 900), spans=[(wire.COMPILATION, 50, 900, 0)]) == {1: "compilation"}


def test_no_more_than_five_steps_are_the_slowest() -> None:
    records = [step_record(n, 1000 * n, 1000 * n + (100 if n <= 20 else 900), gap_ns=None) for n in range(1, 31)]
    timeline, steps = life(records, hooked=0)
    assert len(find_slowest_steps([(keep_ledger(timeline, steps, []), steps)])) <= 5


def test_a_cause_explains_no_more_than_what_a_step_took_over_the_median() -> None:
    """The rest of the step may have taken less than usual."""
    timeline, steps = life(records_with(6, 400, data_wait_ns=440), hooked=0)
    (slow,) = find_slowest_steps([(keep_ledger(timeline, steps, []), steps)])
    assert (slow.cause, slow.over_median_ns, slow.cause_ns) == ("data wait", 400, 400)


def test_a_collection_of_garbage_is_the_cause_also_on_the_rank_that_waits_for_the_one_that_collects() -> None:
    collecting = records_with(7, 300, spans=(Span(wire.GARBAGE, 620, 900),))
    waiting = records_with(7, 400)
    both = []
    for rank, records in enumerate((collecting, waiting)):
        timeline, steps = life(records, hooked=0)
        both.append((replace(keep_ledger(timeline, steps, []), rank=rank), steps))
    (slow,) = find_slowest_steps(both)
    assert (slow.step, slow.rank, slow.cause, slow.cause_ns) == (7, 1, "garbage collection on rank 0", 280)
    (alone,) = find_slowest_steps(both[:1])
    assert (alone.cause, alone.cause_ns) == ("garbage collection", 280)
    (without,) = find_slowest_steps(both[1:])
    assert without.cause == "unexplained"
