"""Why a device was idle, one cause at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import idle
from perfscope.sources.traces.reader import read_trace
from tests.sources.traces.making import AUTOGRAD, Event, call, kernel, span, write

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


def test_the_host_had_not_asked_yet(tmp_path: Path) -> None:
    assert causes(tmp_path, *two_kernels(40, 30, 35)) == {"host_launch": 30, "launch_latency": 10}


def test_the_host_was_fetching_data(tmp_path: Path) -> None:
    loader = span("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 90 * US, 120 * US)
    assert causes(tmp_path, *two_kernels(40, 30, 35), loader) == {
        "data_loading": 20,
        "host_launch": 10,
        "launch_latency": 10,
    }


@pytest.mark.parametrize(
    "name", ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "hipDeviceSynchronize"]
)
def test_the_host_had_waited_for_the_device(tmp_path: Path, name: str) -> None:
    waiting = call(name, 50 * US, 105 * US, launch=9)
    assert causes(tmp_path, *two_kernels(40, 30, 35), waiting) == {"synchronisation": 30, "launch_latency": 10}


@pytest.mark.parametrize("name", ["cudaStreamWaitEvent", "cudaMemcpyAsync", "cudaEventQuery", "cudaEventRecord"])
def test_calls_that_do_not_block_are_no_synchronisation(tmp_path: Path, name: str) -> None:
    assert "synchronisation" not in causes(tmp_path, *two_kernels(40, 30, 35), call(name, 50 * US, 105 * US, launch=9))


def test_another_thread_may_wait_for_the_device_without_harm(tmp_path: Path) -> None:
    waiting = call("cudaStreamSynchronize", 50 * US, 105 * US, launch=9, tid=AUTOGRAD)
    assert causes(tmp_path, *two_kernels(40, 30, 35), waiting) == {"host_launch": 30, "launch_latency": 10}


def test_the_launch_was_under_way(tmp_path: Path) -> None:
    assert causes(tmp_path, *two_kernels(8, -2, 3)) == {"launch_latency": 8}


@pytest.mark.parametrize(("gap_us", "cause"), [(4, "launch_gap"), (5, "dependency"), (400, "dependency")])
def test_the_kernel_had_been_launched_long_before(tmp_path: Path, gap_us: int, cause: str) -> None:
    assert causes(tmp_path, *two_kernels(gap_us, -50, -45)) == {cause: gap_us}


def test_gaps_inside_a_graph_are_the_graph_s(tmp_path: Path) -> None:
    assert causes(tmp_path, *two_kernels(40, -50, -45, "cudaGraphLaunch")) == {"graph": 40}


def test_a_launch_that_the_trace_does_not_hold_is_not_guessed(tmp_path: Path) -> None:
    assert causes(tmp_path, kernel("first", 0, US), kernel("second", 5 * US, 6 * US)) == {"unknown": 4}


def test_a_device_is_not_idle_while_another_stream_works(tmp_path: Path) -> None:
    assert causes(tmp_path, *two_kernels(40, 30, 35), kernel("other", 90 * US, 140 * US, stream=8)) == {}


def test_the_longest_gaps_say_what_ran_around_them(tmp_path: Path) -> None:
    (rank,) = idle.measure(read_trace(write(tmp_path / "rank0.json", two_kernels(40, 30, 35))))
    (gap,) = rank.longest
    assert (gap.start_ns, gap.duration_ns, gap.cause) == (100 * US, 40 * US, "host_launch")
    assert (gap.before, gap.after) == ("first", "second")
