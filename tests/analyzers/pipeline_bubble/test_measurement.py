"""Claims about the bubble that is measured from traces."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.pipeline_bubble.decomposition import StageParts, decompose
from perfscope.analyzers.pipeline_bubble.rank_passes import MeasuredPass, PassesOfStep, Transfer
from perfscope.engine.analysis_report import to_report
from perfscope.engine.run import Plan as Analyzers
from perfscope.engine.run import analyze
from perfscope.renderers import Format, render
from perfscope.schedules.catalog import Schedule, make_plan
from perfscope.schedules.operations import Op, PassKind, PassOrder, single_block
from perfscope.schedules.simulator import UniformTiming, simulate
from tests.analyzers.pipeline_bubble.generator import ALL_REDUCE, Job, no_marks, pytorch_marks, write_job
from tests.sources.traces import making

PARTS = ("useful_us", "schedule_us", "imbalance_us", "transfer_us", "host_us")


def _document(*paths: Path) -> dict[str, Any]:
    analysis = analyze(list(paths), Analyzers(only=frozenset({"pipeline_bubble"})))
    document: dict[str, Any] = json.loads(render(to_report(analysis), Format.JSON))
    return document


def _bubble(*paths: Path) -> dict[str, Any]:
    document = _document(*paths)
    assert "pipeline_bubble" in document["results"], document["skipped"]
    found: dict[str, Any] = document["results"]["pipeline_bubble"]
    return found


def _reason(*paths: Path) -> str:
    return next(str(one["reason"]) for one in _document(*paths)["skipped"] if one["analyzer"] == "pipeline_bubble")


def _equal(work: PassOrder, forward: int = 4000, backward: int = 8000, transfer: int = 0) -> UniformTiming:
    stages = work.stages
    return UniformTiming(
        (forward,) * stages, (backward,) * stages, (backward // 2,) * stages, (transfer,) * work.devices
    )


def _adds_up(bubble: dict[str, Any]) -> None:
    for row in bubble["stages"]:
        assert sum(row[part] for part in PARTS) == pytest.approx(bubble["section_us"], rel=1e-12)
        assert row["idle_us"] == pytest.approx(bubble["section_us"] - row["useful_us"], rel=1e-12)
    total = bubble["p"] * bubble["section_us"]
    useful = sum(row["useful_us"] for row in bubble["stages"])
    assert bubble["fraction_of_total"] == pytest.approx(1 - useful / total, rel=1e-12)
    for step in bubble["steps"]:
        for row in step["stages"]:
            parts = [round(1000 * row[part]) for part in PARTS]
            assert sum(parts) == round(1000 * step["section_us"])


@pytest.mark.parametrize(
    ("schedule", "devices", "microbatches", "chunks"),
    [
        (Schedule.GPIPE, 2, 2, 1),
        (Schedule.GPIPE, 4, 3, 1),
        (Schedule.ONE_F_ONE_B, 2, 2, 1),
        (Schedule.ONE_F_ONE_B, 8, 24, 1),
        (Schedule.ONE_F_ONE_B, 4, 3, 1),
        (Schedule.INTERLEAVED, 4, 8, 3),
    ],
)
def test_the_trace_of_a_simulated_schedule_gives_the_theory_exactly(
    tmp_path: Path, schedule: Schedule, devices: int, microbatches: int, chunks: int
) -> None:
    work = make_plan(schedule, devices, microbatches, chunks)
    write_job(Job(work, _equal(work)), tmp_path)
    found = _bubble(tmp_path)
    expected = Fraction(devices - 1, chunks * microbatches + devices - 1)
    assert found["fraction_of_total"] == float(expected)
    assert found["theory_fraction_of_total"] == float(expected)
    assert (found["schedule"], found["virtual_stages"]) == (schedule, chunks)
    assert (found["p"], found["microbatches"]) == (devices, microbatches)
    for row in found["stages"]:
        assert row["useful_us"] == 12 * chunks * microbatches
        assert row["schedule_us"] == 12 * (devices - 1)
        assert (row["imbalance_us"], row["transfer_us"], row["host_us"]) == (0, 0, 0)
    _adds_up(found)


@pytest.mark.parametrize("schedule", [one for one in Schedule if one is not Schedule.DUALPIPE])
def test_marked_passes_name_their_schedule_and_give_its_simulation(tmp_path: Path, schedule: Schedule) -> None:
    work = make_plan(schedule, 4, 8, 2 if schedule is Schedule.INTERLEAVED else 1)
    write_job(Job(work, _equal(work), mark=pytorch_marks), tmp_path)
    found = _bubble(tmp_path)
    assert found["schedule"] == schedule
    assert found["microbatches"] == 8
    assert found["fraction_of_total"] == float(simulate(work, _equal(work)).fraction_of_total)
    assert found["theory_fraction_of_total"] == found["fraction_of_total"]
    _adds_up(found)


def test_a_pass_that_launches_nothing_is_a_pass_all_the_same(tmp_path: Path) -> None:
    work = make_plan(Schedule.ZB_H1, 2, 4)
    write_job(Job(work, _equal(work), mark=pytorch_marks, silent=Op(PassKind.INPUT_GRADIENT, 1, 0)), tmp_path)
    found = _bubble(tmp_path)
    assert (found["schedule"], found["microbatches"]) == ("zb-h1", 4)
    assert found["stages"][0]["useful_us"] == 48 - 4
    _adds_up(found)


def test_unequal_stages_are_imbalance_and_negative_on_the_slow_one(tmp_path: Path) -> None:
    work = make_plan(Schedule.ONE_F_ONE_B, 4, 8)
    timing = UniformTiming((4000, 4000, 4000, 6000), (8000, 8000, 8000, 12000), (0,) * 4, (0,) * 4)
    write_job(Job(work, timing), tmp_path)
    found = _bubble(tmp_path)
    mean = (3 * 12 + 18) / 4
    section = simulate(work, timing).section / 1000
    for stage, row in enumerate(found["stages"]):
        useful = 8 * (18 if stage == 3 else 12)
        assert row["useful_us"] == useful
        assert row["schedule_us"] == pytest.approx(3 * mean, abs=1e-3)
        assert row["imbalance_us"] == pytest.approx(section - useful - 3 * mean, abs=1e-3)
        assert (row["transfer_us"], row["host_us"]) == (0, 0)
    assert found["stages"][3]["imbalance_us"] < 0 < sum(row["imbalance_us"] for row in found["stages"])
    _adds_up(found)


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_F_ONE_B])
@pytest.mark.parametrize("names_peers", [True, False])
def test_transfers_are_told_from_waiting(tmp_path: Path, schedule: Schedule, names_peers: bool) -> None:
    work = make_plan(schedule, 4, 8)
    timing = _equal(work, transfer=500)
    write_job(Job(work, timing, names_peers=names_peers), tmp_path)
    found = _bubble(tmp_path)
    longer = (simulate(work, timing).section - simulate(work, _equal(work)).section) / 1000
    assert longer > 0
    for row in found["stages"]:
        assert row["schedule_us"] == 3 * 12
        assert row["transfer_us"] == longer
        assert (row["imbalance_us"], row["host_us"]) == (0, 0)
    _adds_up(found)


def test_gaps_in_front_of_every_pass_are_the_hosts(tmp_path: Path) -> None:
    work = make_plan(Schedule.ONE_F_ONE_B, 4, 8)
    write_job(Job(work, _equal(work, 5000, 9000), idle=1000), tmp_path)
    found = _bubble(tmp_path)
    section = (8 + 3) * 14 - 1  # the section begins with the first kernel, behind the first gap
    assert found["section_us"] == section
    for row in found["stages"]:
        assert row["useful_us"] == 8 * 12
        assert row["schedule_us"] == 3 * 12
        assert row["host_us"] == section - 11 * 12
    _adds_up(found)


def test_gradient_synchronisation_at_the_end_is_neither_work_nor_section(tmp_path: Path) -> None:
    work = make_plan(Schedule.ONE_F_ONE_B, 2, 4)

    def synchronise(writer: Any, zero: int, end: int) -> None:
        writer.launch(ALL_REDUCE, end - 2000, end + 900_000, making.AUTOGRAD)

    write_job(Job(work, _equal(work), extra={0: synchronise, 1: synchronise}), tmp_path)
    found = _bubble(tmp_path)
    assert found["fraction_of_total"] == 1 / 5
    assert found["stages"][0]["useful_us"] == 48


def test_a_step_that_one_stage_lacks_is_left_out_and_said(tmp_path: Path) -> None:
    work = make_plan(Schedule.ONE_F_ONE_B, 2, 4)
    (tmp_path / "more").mkdir()
    short = write_job(Job(work, _equal(work), steps=2), tmp_path)
    longer = write_job(Job(work, _equal(work), steps=3), tmp_path / "more")
    found = _bubble(short[0], longer[1])
    assert [step["step"] for step in found["steps"]] == ["6", "7"]
    assert any("1 steps are not complete" in note for note in found["notes"])


@pytest.mark.parametrize(("mark", "schedule"), [(pytorch_marks, "custom"), (no_marks, None)])
def test_an_order_without_a_name_has_parts_where_it_is_marked_and_a_total_everywhere(
    tmp_path: Path, mark: Any, schedule: str | None
) -> None:
    # Two forwards, two backwards, and again: no schedule that is known does that.
    orders = tuple(
        tuple(
            single_block(kind, microbatch, device)
            for start in (0, 2)
            for kind in (PassKind.FORWARD, PassKind.BACKWARD)
            for microbatch in (start, start + 1)
        )
        for device in range(2)
    )
    work = PassOrder(4, 2, orders)
    write_job(Job(work, _equal(work), mark=mark), tmp_path)
    found = _bubble(tmp_path)
    expected = float(simulate(work, _equal(work)).fraction_of_total)
    assert found["schedule"] == schedule
    assert found["fraction_of_total"] == expected
    assert found["theory_fraction_of_total"] == (expected if schedule else None)
    assert found["stages"][0]["useful_us"] == 48
    assert (found["stages"][0]["schedule_us"] is None) == (schedule is None)
    assert any("matches no supported schedule" in note for note in found["notes"])


def test_a_stage_without_a_trace_is_named_in_place_of_a_bubble(tmp_path: Path) -> None:
    work = make_plan(Schedule.ONE_F_ONE_B, 4, 8)
    paths = write_job(Job(work, _equal(work)), tmp_path)
    assert _reason(*(paths[number] for number in (0, 1, 3))) == "stages 2 (ranks 2) have no trace"


def _pipelines_of(folder: Path, groups: list[dict[str, Any]]) -> None:
    """Two pipelines of two stages: ranks 0 and 2, 1 and 3."""
    work = make_plan(Schedule.ONE_F_ONE_B, 2, 4)
    for first in (0, 1):
        write_job(Job(work, _equal(work), groups=groups, rank_of={0: first, 1: first + 2}, world_size=4), folder)


def test_pipelines_that_ran_side_by_side_are_found_by_their_groups(tmp_path: Path) -> None:
    groups = [
        {"pg_name": "1", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "2", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "pg_size": 2, "ranks": [0, 2]},
        {"pg_name": "3", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "pg_size": 2, "ranks": [1, 3]},
        {
            "pg_name": "4",
            "pg_desc": "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP",
            "pg_size": 4,
            "ranks": [0, 1, 2, 3],
        },
    ]
    _pipelines_of(tmp_path, groups)
    found = _bubble(tmp_path)
    assert found["p"] == 2
    assert [row["ranks"] for row in found["stages"]] == [[0, 1], [2, 3]]
    assert found["fraction_of_total"] == 1 / 5
    _adds_up(found)


def test_ranks_that_nothing_sorts_into_pipelines_are_not_guessed(tmp_path: Path) -> None:
    _pipelines_of(tmp_path, [{"pg_name": "1", "pg_desc": "undefined", "pg_size": 2, "ranks": [0, 1]}])
    assert "no process group is described as one" in _reason(tmp_path)


def test_stages_are_ordered_by_who_waits_for_whom_whatever_their_ranks(tmp_path: Path) -> None:
    for schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B):
        folder = tmp_path / schedule
        folder.mkdir()
        work = make_plan(schedule, 4, 8)
        write_job(Job(work, _equal(work), rank_of={0: 2, 1: 0, 2: 3, 3: 1}), folder)
        found = _bubble(folder)
        assert [row["rank"] for row in found["stages"]] == [2, 0, 3, 1]
        assert found["fraction_of_total"] == 3 / 11


def test_fewer_micro_batches_than_stages_are_measured_and_said(tmp_path: Path) -> None:
    work = make_plan(Schedule.ONE_F_ONE_B, 4, 2)
    write_job(Job(work, _equal(work)), tmp_path)
    found = _bubble(tmp_path)
    assert found["fraction_of_total"] == 3 / 5
    assert "2 micro-batches cannot fill 4 stages." in found["notes"]


PLAN = PassOrder(
    microbatches=1,
    stages=2,
    orders=tuple(
        (single_block(PassKind.FORWARD, 0, stage), single_block(PassKind.BACKWARD, 0, stage)) for stage in (0, 1)
    ),
)


def measured(kind: PassKind, start: int, end: int, position: int, work: int | None = None) -> MeasuredPass:
    return MeasuredPass(kind, 0, None, start, end, end - start if work is None else work, position, position)


def stages(*, work: int | None = None, transfers: bool = True) -> list[PassesOfStep]:
    """Each send takes 30 or 5; its receive ends 10 or 5 later, and the next pass begins another 5 later."""
    first = [Transfer(100, 130, 2, "send"), Transfer(110, 355, 3, "recv")]
    second = [Transfer(20, 140, 1, "recv"), Transfer(345, 350, 4, "send")]
    return [
        PassesOfStep(
            "1",
            (measured(PassKind.FORWARD, 0, 100, 1, work), measured(PassKind.BACKWARD, 360, 460, 4)),
            tuple(first if transfers else ()),
            {},
        ),
        PassesOfStep(
            "1",
            (measured(PassKind.FORWARD, 145, 245, 2), measured(PassKind.BACKWARD, 245, 345, 3)),
            tuple(second if transfers else ()),
            {},
        ),
    ]


def parts(steps: list[PassesOfStep]) -> StageParts:
    found = decompose(PLAN, steps)
    (first, second) = found.stages
    for stage in (first, second):
        assert None not in (stage.useful, stage.schedule, stage.imbalance, stage.transfer, stage.host)
        parts = (stage.useful, stage.schedule, stage.imbalance, stage.transfer, stage.host)
        whole = sum(part for part in parts if part is not None)
        assert whole == found.section_ns == 460
    assert (first.transfer, first.host) == (second.transfer, second.host)
    return first


def test_a_receive_that_ends_behind_its_send_is_the_transfers_and_what_the_device_then_waits_is_the_hosts() -> None:
    found = parts(stages())
    assert found.host == 5 + 5
    assert found.transfer == 30 + 10 + 5 + 5


def test_gaps_within_a_pass_are_the_hosts() -> None:
    found = parts(stages(work=93))
    assert found.host == 5 + 5 + 7
    assert found.transfer == 30 + 10 + 5 + 5


def test_where_the_traces_show_no_transfer_its_time_is_among_the_hosts() -> None:
    found = parts(stages(transfers=False))
    assert found.transfer == 0
    assert found.host == 60
