"""Why a device was idle, one cause at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import idle
from perfscope.measures.parts import CAUSES
from perfscope.sources.traces.reader import read_trace
from tests.sources.traces.making import Event, call, kernel, span, step, write

US = 1000


def causes(tmp_path: Path, *events: Event) -> dict[str, float]:
    """The causes of idle time in microseconds, those that are none left out."""
    data: Any = idle.analyze([idle.measure(read_trace(write(tmp_path / "rank0.json", list(events))))]).data()
    (rank,) = data["ranks"]
    assert sum(rank["causes"].values()) == pytest.approx(rank["idle_us"], abs=1e-9)
    return {name.removesuffix("_us"): value for name, value in rank["causes"].items() if value}


def two_kernels(gap_us: int, launched_us: int, returned_us: int, name: str = "cudaLaunchKernel") -> list[Event]:
    """A kernel that ends at 100 us, and one that begins a gap later; times of its launch are from the gap's start."""
    end = 100 * US
    return [
        kernel("first", 0, end, launch=1),
        kernel("second", end + gap_us * US, end + (gap_us + 10) * US, launch=2),
        call("cudaLaunchKernel", 0, US, launch=1),
        call(name, end + launched_us * US, end + returned_us * US, launch=2),
    ]


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("cudaStreamSynchronize", "synchronisation"),
        ("cudaMemcpy", "synchronisation"),
        ("hipDeviceSynchronize", "synchronisation"),
        ("cudaStreamWaitEvent", "cuda_call"),
        ("cudaMemcpyAsync", "cuda_call"),
        ("cudaEventQuery", "cuda_call"),
    ],
)
def test_the_host_waited_for_the_device_only_until_a_call_that_blocks_returned(
    tmp_path: Path, name: str, cause: str
) -> None:
    assert causes(tmp_path, *two_kernels(40, 30, 35), call(name, 50 * US, 105 * US, launch=9)) == {
        cause: 5,
        "host_launch": 25,
        "launch_latency": 10,
    }


def operator(name: str, start_us: float, end_us: float, **more: Any) -> Event:
    return span("cpu_op", name, round(start_us * US), round(end_us * US), **more)


def slow_host(pause_us: int) -> list[Event]:
    """A host that waits for its device, pauses, and launches again from an operator."""
    end = 1000
    begin = end + 3 + pause_us
    return [
        kernel("first", 0, end * US, launch=1),
        operator("aten::mm", 0, 20),
        call("cudaLaunchKernel", 10 * US, 15 * US, launch=1),
        call("cudaStreamSynchronize", 30 * US, (end + 3) * US, launch=9),
        operator("aten::mm", begin, begin + 20),
        call("cudaLaunchKernel", (begin + 8) * US, (begin + 12) * US, launch=2),
        kernel("second", (begin + 15) * US, (begin + 30) * US, launch=2),
    ]


def test_a_sleep_behind_a_synchronisation_is_not_the_synchronisation_s(tmp_path: Path) -> None:
    assert causes(tmp_path, *slow_host(20_000)) == {
        "synchronisation": 3,
        "not_shown": 20_000,
        "operator": 8,
        "launch_latency": 7,
    }


@pytest.mark.parametrize(("pause_us", "cause"), [(999, "between_operators"), (1000, "not_shown")])
def test_a_pause_of_a_millisecond_is_no_longer_python_alone(tmp_path: Path, pause_us: int, cause: str) -> None:
    assert causes(tmp_path, *slow_host(pause_us))[cause] == pause_us


def test_what_fills_a_pause_is_told_if_the_trace_shows_it(tmp_path: Path) -> None:
    """An operator without launches for 9 ms, a fetching loader for 5 ms, an allocation for 2 ms; 4 ms remain."""
    shown = [
        operator("aten::index", 2000, 11_000),
        span(
            "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 12_000 * US, 17_000 * US
        ),
        call("cudaMalloc", 18_000 * US, 20_000 * US, launch=11),
    ]
    found = causes(tmp_path, *slow_host(20_000), *shown)
    assert (found["operator"], found["data_loading"], found["cuda_call"]) == (9008, 5000, 2000)
    assert found["not_shown"] + found["between_operators"] == 4000
    assert found["not_shown"] == 1000 + 1000 + 1003


def test_gaps_inside_a_graph_are_the_graph_s(tmp_path: Path) -> None:
    assert causes(tmp_path, *two_kernels(40, -50, -45, "cudaGraphLaunch")) == {"graph": 40}


def test_the_longest_gaps_say_what_ran_around_them(tmp_path: Path) -> None:
    (rank,) = idle.measure(read_trace(write(tmp_path / "rank0.json", two_kernels(40, 30, 35))))
    (gap,) = rank.longest
    assert (gap.start_ns, gap.duration_ns, gap.cause) == (100 * US, 40 * US, "host_launch")
    assert (gap.before, gap.after) == ("first", "second")


@pytest.mark.parametrize("launch", [-1, 77])
def test_an_event_whose_launch_is_missing_has_an_unknown_cause(tmp_path: Path, launch: int) -> None:
    """The call of the first kernel is there, that of the second one is not."""
    events = two_kernels(40, 30, 35)
    events = [events[0], kernel("second", 140 * US, 150 * US, launch=launch), events[2]]
    (rank,) = partial = idle.measure(read_trace(write(tmp_path / "rank0.json", events)))
    assert dict(zip(CAUSES, rank.by_cause, strict=True))["unknown"] == 40 * US
    notes = idle.analyze([partial]).sections()[0].notes
    assert any("does not contain the launch" in note for note in notes)


def test_idle_time_of_marked_steps_is_told_apart_from_that_of_the_window(tmp_path: Path) -> None:
    """100 us between two kernels of the step, 500 us between the steps."""
    events: list[Event] = []
    for number, first in ((3, 0), (4, 800)):
        events.append(step(number, first * US, (first + 300) * US))
        for index, begin in enumerate((first + 100, first + 300)):
            launch = 10 * number + index
            events.append(call("cudaLaunchKernel", (first + 5 + index) * US, (first + 6 + index) * US, launch=launch))
            events.append(kernel("gemm", begin * US, (begin + 100) * US, launch=launch))
    (rank,) = idle.measure(read_trace(write(tmp_path / "rank0.json", events)))
    assert sum(rank.by_cause) == 2 * 100 * US + 500 * US
    assert rank.marked_by_cause is not None
    assert dict(zip(CAUSES, rank.marked_by_cause, strict=True))["dependency"] == sum(rank.marked_by_cause) == 200 * US
