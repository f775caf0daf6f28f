"""The wall clock: the ledger against an oracle that asks for every nanosecond, runs on disk, the slowest steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope import wire
from perfscope.analyzers.wall_clock import Ledger, analyze, find_slowest_steps, keep_ledger
from perfscope.measures.parts import LifePart
from perfscope.sources.runs.peer_stalls import find_peer_stalls
from perfscope.sources.runs.run import read_run
from perfscope.sources.runs.save_records import to_timeline
from perfscope.sources.runs.step_columns import to_steps
from perfscope.tables.run import Window
from perfscope.tables.steps import PeerStall, Steps
from perfscope.tables.timeline import Timeline
from perfscope.wire.records import CheckpointRecord, EndRecord, RankRecord, Span, StepRecord, to_line
from tests.analyzers.test_steps import MS, write_run


def step_record(number: int, begin: int, end: int, **fields: object) -> StepRecord:
    """A step from a moment to another one; what saves and validation took is not in ``wall_ns``."""
    off = sum(int(str(fields.get(name) or 0)) for name in ("save_ns", "no_grad_ns"))
    known: dict[str, object] = {"wall_ns": end - begin - off, **fields}
    return StepRecord(number, end, "optimizer", **known)  # type: ignore[arg-type]


def life(
    records: Sequence[StepRecord],
    *,
    started: int | None = 0,
    torch_loaded: int | None = None,
    hooked: int | None = None,
    ended: int | None = None,
    spans: Sequence[tuple[str, int, int, int]] = (),
    saves: Sequence[tuple[int, int]] = (),
) -> tuple[Timeline, Steps]:
    """A process of rank 0 with these steps; spans of kind, start, end and wait end with the process."""
    rank = RankRecord(0, 1, "host", 1, 0, 0, "3.11", started_ns=started, torch_loaded_ns=torch_loaded, hooked_ns=hooked)
    last = max([records[-1].end_ns, *(end for _, _, end, _ in spans)])
    events = [EndRecord(last if ended is None else ended, tuple(Span(*span) for span in spans))]
    checkpoints = [CheckpointRecord(start, end, "torch.save") for start, end in saves]
    timeline = to_timeline(
        (0, 0), rank, [span for record in records for span in record.spans or ()], events, checkpoints
    )
    return timeline, to_steps(0, 0, records)


def parts_of(ledger: Ledger) -> dict[str, int]:
    """The parts that took time."""
    return {str(part): int(wall_ns) for part, wall_ns in ledger.parts.items() if wall_ns}


def window(first_step: int, last_step: int, **fields: int) -> Window:
    stalls = {"start_ns": 0, "stop_ns": 0, "export_ns": 0, **fields}
    return Window(0, first_step, last_step, "t", trace_bytes=1, partial=False, **stalls)  # type: ignore[arg-type]


def test_a_window_has_a_start_a_stop_and_an_export() -> None:
    labels = [None, "warmup", "profiled", "export", None]
    begins, ends = (0, 130, 240, 660, 770), (100, 230, 340, 760, 870)
    records = [
        step_record(number, begin, end, window=label)
        for number, begin, end, label in zip(range(1, 6), begins, ends, labels, strict=True)
    ]
    timeline, steps = life(records, hooked=0)
    ledger = keep_ledger(timeline, steps, [window(3, 3, start_ns=25, stop_ns=200, export_ns=90, release_ns=10)])
    assert parts_of(ledger) == {
        "first_step": 100,
        "window_start": 25,
        "window_steps": 200,
        "window_stop": 200,
        "window_export": 100,
        "steps": 200,
        "hooks": 5 + 10 + 20 + 10,
    }


def test_a_window_that_was_lost_is_no_hook() -> None:
    records = [
        step_record(1, 0, 10),
        step_record(2, 11, 20, window="profiled"),
        step_record(3, 90, 99, window="export"),
    ]
    timeline, steps = life(records, hooked=0)
    assert keep_ledger(timeline, steps, []).parts[LifePart.WINDOW_STOP] == 70


def test_of_an_old_run_the_rest_is_absent_and_not_zero() -> None:
    records = [step_record(1, 5, 10, hook_ns=None), step_record(2, 12, 20)]
    timeline, steps = life(records, started=None, ended=20)
    ledger = keep_ledger(timeline, steps, [])
    assert parts_of(ledger) == {"first_step": 5, "hooks": 2, "steps": 8}
    assert not ledger.is_start_known
    assert LifePart.VALIDATION not in ledger.parts
    assert LifePart.IMPORTS not in ledger.parts
    assert LifePart.DATA_WAIT not in ledger.parts


def test_where_the_first_step_was_not_seen_to_begin_it_cannot_be_told_from_start_up() -> None:
    timeline, steps = life([step_record(1, 0, 90, wall_ns=None), step_record(2, 95, 100)], torch_loaded=20, hooked=40)
    ledger = keep_ledger(timeline, steps, [])
    assert parts_of(ledger) == {"imports": 20, "set_up": 20, "before_first_step": 50, "hooks": 5, "steps": 5}
    assert not ledger.is_first_step_known
    assert LifePart.FIRST_STEP not in ledger.parts


def test_a_forked_process_begins_when_it_was_forked() -> None:
    """What its parent did before, such as loading torch, is no part of its life."""
    timeline, steps = life([step_record(1, 150, 200)], started=100, torch_loaded=30, hooked=50)
    ledger = keep_ledger(timeline, steps, [])
    assert ledger.wall_ns == 100
    assert parts_of(ledger) == {"before_first_step": 50, "first_step": 50}


def data(run: Path) -> dict[str, Any]:
    """The JSON of a run's wall clock."""
    document: dict[str, Any] = json.loads(json.dumps(analyze(read_run(run)).data()))
    return document


def test_the_table_ends_with_the_whole_and_has_the_median_rank_beside_the_slowest(tmp_path: Path) -> None:
    run = write_run(tmp_path, {0: [20, 10, 10], 1: [30, 10, 10], 2: [90, 10, 10]}, labels={})
    clock = analyze(read_run(run))
    (table, *_) = clock.sections()
    assert [column.heading for column in table.columns] == ["Part", "Rank 2 (s)", "Share (%)", "Rank 1 (s)"]
    assert table.rows[-1][0] == "all"
    assert table.rows[-1][1] == pytest.approx(sum(float(row[1] or 0) for row in table.rows[:-1]))


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
    assert slow_causes(records_with(7, 400, hook_ns=400)) == {}  # perfscope's own doing


def test_a_cause_explains_no_more_than_what_a_step_took_over_the_median() -> None:
    """The rest of the step may have taken less than usual."""
    timeline, steps = life(records_with(6, 400, data_wait_ns=440), hooked=0)
    (slow,) = find_slowest_steps([(keep_ledger(timeline, steps, []), steps)])
    assert (slow.cause, slow.over_median_ns, slow.cause_ns) == ("data wait", 400, 400)


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
