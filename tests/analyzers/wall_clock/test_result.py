"""The wall clock of runs on disk: whole numbers that add up, what is not known, and what slowed the slowest steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope import wire
from perfscope.analyzers.wall_clock import analyze
from perfscope.analyzers.wall_clock.ledger import Ledger, keep_ledger
from perfscope.analyzers.wall_clock.slowest import find_slowest_steps
from perfscope.errors import MissingInput
from perfscope.sources.runs.peer_stalls import find_peer_stalls
from perfscope.sources.runs.run import read_run
from perfscope.tables.steps import PeerStall, Steps
from perfscope.tables.timeline import Timeline
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
    run = write_run(tmp_path, {0: [1] * 9}, labels={})
    save = CheckpointRecord(9 * MS, 14 * MS, "torch.save")
    (run / wire.RANKS_FOLDER / "00000" / wire.CHECKPOINTS_FILE).write_bytes(to_line(save))
    clock = data(run)
    assert any(note.startswith("The end was not recorded") for note in clock["notes"])
    (rank,) = clock["ranks"]
    assert rank["wall_ns"] == 14 * MS  # from the beginning of the first step to the end of the save
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


def records_with(step: int, extra: int, unit: int = 1, **fields: Any) -> list[StepRecord]:
    """Twelve steps of 100 units of time, of which one takes longer, with these fields."""
    records, now = [], 0
    for number in range(1, 13):
        length = unit * (100 + (extra if number == step else 0))
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


def test_a_collection_of_garbage_explains_the_step_in_which_it_ran() -> None:
    assert slow_causes(records_with(7, 300, spans=(Span(wire.GARBAGE, 620, 900),))) == {7: "garbage collection"}


def both_ranks(
    doing: tuple[Timeline, Steps], waiting: list[StepRecord], host: str = "host"
) -> list[tuple[Ledger, Steps]]:
    """Rank 0, which does something besides training, and rank 1, which waits for it."""
    lives = [doing, life(waiting, hooked=0)]
    timelines = [replace(timeline, rank=rank) for rank, (timeline, _) in enumerate(lives)]
    tables = find_peer_stalls([replace(steps, rank=rank) for rank, (_, steps) in enumerate(lives)], timelines)
    return [(keep_ledger(*pair, []), pair[1]) for pair in zip(timelines, tables, strict=True)]


@pytest.mark.parametrize(
    ("fields", "spans", "saves", "cause"),
    [
        ({"save_ns": 380 * MS}, [], [(605, 985)], "checkpoint save on rank 0"),
        ({"no_grad_ns": 380 * MS}, [(wire.VALIDATION, 605, 985)], [], "validation on rank 0"),
        ({"no_grad_ns": 380 * MS}, [(wire.GENERATION, 605, 985)], [], "generation on rank 0"),
        ({}, [(wire.COMPILATION, 605, 985)], [], "compilation on rank 0"),
        ({}, [(wire.GARBAGE, 605, 985)], [], "garbage collection on rank 0"),
        ({"window": "profiled"}, [], [], "profiler window on rank 0"),
        ({"begins": 985, "window": "export"}, [], [], "profiler window on rank 0"),  # in the boundary
        ({}, [], [], "unexplained"),
    ],
)
@pytest.mark.parametrize("later", [0, 1])
def test_a_rank_that_waits_says_for_which_one_and_for_what(
    fields: dict[str, Any], spans: list[tuple[str, int, int]], saves: list[tuple[int, int]], cause: str, later: int
) -> None:
    """Steps of 100 ms; rank 0 does it in step 7. Rank 1 waits in the same step, or its host runs ahead to the next."""
    fields, wall = dict(fields), {}
    if begins := fields.pop("begins", None):
        wall = {"wall_ns": (1000 - begins) * MS}
    doing = records_with(7, 300, MS, **fields, **wall)
    waiting = records_with(7 + later, 301, MS)
    rank0 = life(
        doing,
        hooked=0,
        spans=[(kind, start * MS, end * MS, 0) for kind, start, end in spans],
        saves=[(start * MS, end * MS) for start, end in saves],
    )
    (_, _), (ledger, steps) = both_ranks(rank0, waiting)
    (slow,) = find_slowest_steps([(ledger, steps)])
    assert (slow.step, slow.rank, slow.cause) == (7 + later, 1, cause)
    is_marked = cause not in ("unexplained", "garbage collection on rank 0")
    assert (7 + later in steps.step[steps.stalled_elsewhere]) == is_marked


def test_a_rank_waits_for_the_first_step_of_another_one() -> None:
    slow_start = life(records_with(1, 900, MS), hooked=0)
    (_, _), (ledger, steps) = both_ranks(slow_start, records_with(2, 900, MS))
    (slow,) = find_slowest_steps([(ledger, steps)])
    assert (slow.step, slow.cause, slow.cause_ns) == (2, "first step on rank 0", 900 * MS)


def test_what_both_ranks_do_stalls_none_of_them() -> None:
    records = records_with(7, 300, MS, no_grad_ns=300 * MS, spans=(Span(wire.VALIDATION, 650 * MS, 950 * MS),))
    for _, steps in both_ranks(life(records, hooked=0), records):
        assert not steps.peer_stalls
        assert not steps.stalled_elsewhere.any()


def test_a_slow_step_of_another_moment_is_not_explained() -> None:
    rank0 = life(records_with(4, 300, MS, save_ns=300 * MS), hooked=0, saves=[(320 * MS, 620 * MS)])
    ends_apart = records_with(9, 301, MS)
    (_, _), (ledger, steps) = both_ranks(rank0, ends_apart)
    (slow,) = find_slowest_steps([(ledger, steps)])
    assert (slow.step, slow.cause) == (9, "unexplained")


def test_a_step_half_of_which_is_unexplained_names_no_rank() -> None:
    rank0 = life(records_with(7, 300, MS), hooked=0, spans=[(wire.VALIDATION, 610 * MS, 750 * MS, 0)])
    (_, _), (ledger, steps) = both_ranks(rank0, records_with(7, 300, MS))
    assert [slow.cause for slow in find_slowest_steps([(ledger, steps)])] == ["unexplained"]
    assert not steps.stalled_elsewhere.any()


def test_ranks_of_two_hosts_are_compared_by_their_wall_clocks() -> None:
    """The clock of the second host begins 5 s later."""
    rank0 = life(records_with(7, 300, MS, save_ns=300 * MS), hooked=0, saves=[(620 * MS, 920 * MS)])
    timelines = [replace(rank0[0], rank=0), replace(life(records_with(7, 301, MS), hooked=0)[0], rank=1, host="other")]
    timelines[1] = replace(timelines[1], offset_ns=5_000 * MS)
    waiting = life([step_record(n, *times) for n, times in shifted(records_with(7, 301, MS), -5_000 * MS)], hooked=0)[1]
    _, steps = find_peer_stalls([replace(rank0[1], rank=0), replace(waiting, rank=1)], timelines)
    assert steps.peer_stalls == (PeerStall(7, 0, "save", 300 * MS),)


def shifted(records: list[StepRecord], by_ns: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """The steps with their begins and ends at other moments."""
    for record in records:
        assert record.wall_ns is not None
        yield record.step, (record.end_ns - record.wall_ns + by_ns, record.end_ns + by_ns)
