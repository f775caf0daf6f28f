"""Where a device's time went, on timelines that a reader can add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import breakdown, idle
from perfscope.errors import MissingInput
from perfscope.sources.traces.reader import read_trace
from tests.sources.traces.making import Event, call, copy, distributed, kernel, step, write

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def entries(tmp_path: Path, *traces: list[Event], **head: Any) -> list[dict[str, Any]]:
    paths = [write(tmp_path / f"rank{rank}.json", events, **head) for rank, events in enumerate(traces)]
    data: Any = breakdown.analyze([breakdown.measure(read_trace(path)) for path in paths]).data()
    ranks: list[dict[str, Any]] = data["ranks"]
    return ranks


def only(tmp_path: Path, *events: Event) -> dict[str, Any]:
    (entry,) = entries(tmp_path, list(events))
    return entry


def test_the_parts_add_up_to_the_window(tmp_path: Path) -> None:
    #  0    100  200  300  400  500  600
    #  |gemm.....|              |add|       compute 200 + 50
    #       |nccl.........|                 communication 200, 100 of it hidden
    #                 |copy.....|           copy 130, exposed from 300 to 400
    entry = only(
        tmp_path,
        kernel("gemm", 0, 200),
        kernel(NCCL, 100, 300, stream=20),
        copy("Memcpy HtoD", 280, 410, stream=9),
        kernel("add", 400, 450),
        kernel("add", 550, 600),
    )
    assert {key: entry[key] for key in entry if key.endswith("_us") and "between" not in key} == {
        "window_us": 0.6,
        "compute_us": 0.3,
        "communication_us": 0.2,
        "copy_us": 0.13,
        "exposed_communication_us": 0.1,
        "exposed_copy_us": 0.1,
        "idle_us": 0.1,
    }
    assert entry["overlap_fraction"] == 0.5


def test_without_communication_there_is_no_overlap(tmp_path: Path) -> None:
    entry = only(tmp_path, kernel("gemm", 0, 10))
    assert entry["overlap_fraction"] is None
    assert entry["communication_us"] == 0


def test_steps_are_in_the_order_of_time_and_gaps_between_them_are_told(tmp_path: Path) -> None:
    events: list[Event] = []
    for number, start in ((9, 0), (10, 1000), (11, 2000)):
        events += [
            step(number, start, start + 900),
            call("cudaLaunchKernel", start + 10, start + 20, launch=number),
            kernel("gemm", start + 100, start + 800, launch=number),
        ]
    entry = only(tmp_path, *reversed(events))
    assert [each["name"] for each in entry["steps"]] == ["ProfilerStep#9", "ProfilerStep#10", "ProfilerStep#11"]
    assert entry["between_steps_us"] == 0.6
    assert entry["idle_us"] == 0.6
    assert {(each["host_us"], each["window_us"]) for each in entry["steps"]} == {(0.9, 0.7)}


def test_people_are_told_the_device_where_a_process_drives_several(tmp_path: Path) -> None:
    events = [kernel("gemm", 0, 100), kernel("gemm", 20, 100, device=1), kernel("gemm", 300, 400, device=1)]
    trace = read_trace(write(tmp_path / "rank3.json", events))
    for analyzer in (breakdown, idle):
        section = analyzer.analyze([analyzer.measure(trace)]).sections()[0]
        assert [row[0] for row in section.rows[:2]] == ["3 device 0", "3 device 1"]


def test_windows_of_one_rank_are_added_and_copies_of_one_are_not(tmp_path: Path) -> None:
    """Joined windows once lost the size of the job, and with it a warning."""

    def measured(name: str, start: int) -> Any:
        path = write(tmp_path / name, [kernel("gemm", start, start + 100)], **distributed(0, 4))
        return breakdown.measure(read_trace(path))

    first, later, double = measured("a.json", 0), measured("b.json", 500), measured("c.json", 20)
    joined = breakdown.analyze([later, first])
    (entry,) = joined.ranks
    assert (entry.total.window, entry.device_events, entry.world_size) == (200, 2, 4)
    assert joined.notes == breakdown.analyze([first]).notes
    assert len(breakdown.analyze([first, double]).ranks) == 2


def test_two_runs_of_one_rank_stay_apart_and_are_told(tmp_path: Path) -> None:
    def measured(name: str, start: int, process: int) -> Any:
        launch = call("cudaLaunchKernel", start, start + 1, launch=1, pid=process)
        path = write(tmp_path / name, [launch, kernel("gemm", start, start + 100, launch=1)], **distributed(0))
        return breakdown.measure(read_trace(path))

    windows = [measured("a.json", 0, 41), measured("c.json", 900, 41)]
    other_run = [measured("b.json", 500, 57), measured("d.json", 1500, 57)]
    found = breakdown.analyze([*windows, *other_run])
    assert [(rank.process, rank.total.window, rank.device_events) for rank in found.ranks] == [
        (41, 200, 2),
        (57, 200, 2),
    ]
    assert any(note.startswith("Rank 0: traces of several processes") for note in found.notes)
    assert not any("several processes" in note for note in breakdown.analyze(windows).notes)


def test_of_many_ranks_without_steps_the_first_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breakdown, "MANY_RANKS", 2)
    paths = [write(tmp_path / f"{rank}.json", [kernel("gemm", 0, 9)], **distributed(rank)) for rank in range(3)]
    measured = [breakdown.measure(read_trace(path)) for path in paths]
    for count, listed in ((3, "0, 1 and 1 more"), (2, "0, 1")):
        notes = breakdown.analyze(measured[:count]).notes
        assert any(note.startswith(f"No profiler steps in the trace of rank {listed}: only") for note in notes)


def test_a_marker_on_the_device_or_a_synchronisation_is_no_work(tmp_path: Path) -> None:
    marker = {**kernel("ProfilerStep#1", 0, 1000), "cat": "gpu_user_annotation"}
    wait = {**kernel("Stream Wait Event", 100, 900), "cat": "cuda_sync"}
    entry = only(tmp_path, marker, wait, kernel("gemm", 200, 300), kernel("gemm", 400, 500))
    assert (entry["window_us"], entry["compute_us"], entry["idle_us"]) == (0.3, 0.2, 0.1)


def test_no_device_events_is_said_and_not_zero(tmp_path: Path) -> None:
    with pytest.raises(
        MissingInput, match="2 ranks: the traces contain no GPU events: CPU run, or a profiler conflict"
    ):
        entries(tmp_path, [step(1, 0, 10)], [step(1, 0, 10)])
