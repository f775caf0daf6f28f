"""Figures are of light windows where every process has one that matches, else of the windows with operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.engine.analysis_report import to_report
from perfscope.engine.execution import Execution
from perfscope.engine.run import Analysis, Plan, analyze
from perfscope.engine.windows import TraceFiles, plan_windows
from tests.sources.traces.two_windows import Launch, program, run_window, write_pair, write_window

STEPS = [program(3), program(4), program(3)]
LOG = Launch("aten::item", "Memcpy DtoH")
#: A step of ten kernels with one more, which is nearly the same again, and with two more, which is another one.
NEARLY = [program(3), program(4), program(3, LOG)]
OTHER = [program(3), program(4), program(3, LOG, LOG)]


def job(folder: Path, light: list[list[list[Launch]]]) -> list[tuple[Path, Path]]:
    """The windows of each rank."""
    world = len(light)
    return [write_pair(folder, STEPS, steps, rank=rank, world=world, seed=rank) for rank, steps in enumerate(light)]


def results(analysis: Analysis) -> Any:
    return to_report(analysis).data["results"]


def steps_of(analysis: Analysis) -> list[list[str]]:
    return [[step["name"] for step in rank["steps"]] for rank in results(analysis)["breakdown"]["ranks"]]


LIGHT_STEPS = ["ProfilerStep#9", "ProfilerStep#10", "ProfilerStep#11"]
OPERATOR_STEPS = ["ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"]


def test_times_are_the_light_windows_and_operators_and_collectives_the_others(tmp_path: Path) -> None:
    job(tmp_path, [STEPS, STEPS])
    analysis = analyze([tmp_path], Plan(with_operators=True))
    assert (analysis.windows.times, analysis.windows.notes, analysis.damage) == ("light", (), ())
    assert steps_of(analysis) == [LIGHT_STEPS, LIGHT_STEPS]
    found = results(analysis)
    operators = {entry["name"] for entry in found["kernels"]["operators"]}
    assert "aten::mm_0" in operators
    assert "(no operator)" not in operators
    (operation,) = found["collectives"]["operations"]
    assert (operation["operation"], operation["group_size"], operation["calls"]) == ("all_reduce", 2, 10)


def test_where_one_rank_ran_something_else_all_ranks_are_of_the_windows_with_operators(tmp_path: Path) -> None:
    job(tmp_path, [STEPS, OTHER])
    analysis = analyze([tmp_path])
    assert analysis.windows.times == "operators"
    assert analysis.windows.notes == (
        "The light windows are left out: on rank 1 step 11 is not step 6 again: 9 instead of 7 device events on stream "
        "7 of GPU 0.",
    )
    assert steps_of(analysis) == [OPERATOR_STEPS, OPERATOR_STEPS]
    assert analysis.damage == ()
    device_time = next(section for section in to_report(analysis).sections if section.title == "Device time")
    assert device_time.notes[-2:] == ("Times: window with operators.", *analysis.windows.notes)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_only_the_light_window_ran_is_left_out_of_the_pairs_and_counted(workers: int, tmp_path: Path) -> None:
    job(tmp_path, [NEARLY, STEPS])
    analysis = analyze([tmp_path], Plan(execution=Execution(workers), with_operators=True))
    assert (analysis.windows.times, analysis.damage) == ("light", ())
    assert analysis.windows.notes == (
        "1 of 34 device events in the light windows of rank 0 did not run in the windows with operators: what caused "
        "them is not known.",
    )
    assert steps_of(analysis) == [LIGHT_STEPS, LIGHT_STEPS]
    calls = {entry["name"]: entry["calls"] for entry in results(analysis)["kernels"]["operators"]}
    assert calls["(no operator)"] == 1
    assert calls["aten::mm_0"] == 6


def test_where_one_rank_has_no_light_window_none_is_used(tmp_path: Path) -> None:
    job(tmp_path, [STEPS, STEPS])[1][1].unlink()
    analysis = analyze([tmp_path])
    assert analysis.windows.notes == ("The light windows are left out: there is none on rank 1.",)
    assert steps_of(analysis) == [OPERATOR_STEPS, OPERATOR_STEPS]


def test_a_light_trace_alone_has_its_times(tmp_path: Path) -> None:
    ((_, light),) = job(tmp_path, [STEPS])
    analysis = analyze([light])
    assert (analysis.windows.times, steps_of(analysis)) == ("light", [LIGHT_STEPS])
    report = to_report(analysis)
    assert report.data["windows"] == {"times": "light", "causes": None, "notes": []}
    device_time = next(section for section in report.sections if section.title == "Device time")
    assert "Times: light window. No operators." in device_time.notes


def test_a_light_trace_that_cannot_be_read_is_damage_and_the_other_window_answers(tmp_path: Path) -> None:
    light = job(tmp_path, [STEPS, STEPS])[0][1]
    light.write_bytes(b"")
    analysis = analyze([tmp_path])
    assert steps_of(analysis) == [OPERATOR_STEPS, OPERATOR_STEPS]
    assert analysis.windows.notes == ("The light windows are left out: there is none on rank 0.",)
    assert any("is empty" in line for line in analysis.damage)


def test_a_window_with_operators_that_cannot_be_read_leaves_the_light_times(tmp_path: Path) -> None:
    operators = job(tmp_path, [STEPS])[0][0]
    operators.write_bytes(b"")
    analysis = analyze([tmp_path])
    assert (analysis.windows.times, steps_of(analysis)) == ("light", [LIGHT_STEPS])
    assert any(operators.name in line for line in analysis.damage)


def test_a_window_that_no_light_one_follows_is_left_out(tmp_path: Path) -> None:
    job(tmp_path, [STEPS])
    write_window(tmp_path, run_window(STEPS[:1], first=2, light=False), first=2, light=False)
    analysis = analyze([tmp_path])
    assert analysis.windows.notes == ("Windows that no light window follows are left out, on rank 0.",)
    assert steps_of(analysis) == [LIGHT_STEPS]


def test_the_processes_of_a_restarted_rank_are_paired_apart(tmp_path: Path) -> None:
    job(tmp_path, [STEPS])
    windows = run_window(OTHER, first=4, light=False), run_window(OTHER, first=9, light=True, begin=2_000_000)
    for window, first, light in zip(windows, (4, 9), (False, True), strict=True):
        write_window(tmp_path, window, first=first, light=light, pid=555)
    files = plan_windows(sorted(str(path) for path in tmp_path.rglob("*.gz")), None).files
    folder, light_folder = tmp_path, tmp_path / "light"
    assert set(files) == {
        TraceFiles(str(light_folder / f"node_{pid}.9.pt.trace.json.gz"), str(folder / f"node_{pid}.4.pt.trace.json.gz"))
        for pid in (100, 555)
    }
