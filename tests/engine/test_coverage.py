"""Launches that have no GPU event: which of them a profiler has lost, and which are as they must be."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.engine.coverage import find_problems, summarize
from perfscope.engine.run import analyze
from perfscope.sources.traces.reader import read_trace
from tests.sources.traces.making import Event, call, distributed, kernel, kineto, write


def problems(folder: Path, events: list[Event]) -> list[str]:
    return find_problems([summarize(read_trace(write(folder / "rank0.json", events, **distributed(0))))])


def launched(number: int) -> list[Event]:
    start = 100 * number
    return [
        call("cudaLaunchKernel", start, start + 10, launch=number),
        kernel("gemm", start + 20, start + 50, launch=number),
    ]


SOUND = [event for number in range(10) for event in launched(number)]


def test_a_launch_without_a_kernel_is_a_loss(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, [*SOUND, call("cudaLaunchKernel", 450, 455, launch=99)])
    assert "1 of 11 launches have no GPU event" in line


@pytest.mark.parametrize("name", ["cudaMemsetAsync", "cudaMemcpyAsync", "hipMemsetAsync"])
def test_a_fill_or_a_copy_without_an_event_is_no_loss(tmp_path: Path, name: str) -> None:
    assert problems(tmp_path, [*SOUND, call(name, 450, 455, launch=99)]) == []


def test_what_is_launched_into_a_graph_is_no_loss(tmp_path: Path) -> None:
    captured = [
        call("cudaStreamBeginCapture", 451, 452, launch=97),
        call("cudaLaunchKernel", 453, 455, launch=98),
        call("cudaStreamEndCapture", 456, 457, launch=99),
    ]
    assert problems(tmp_path, [*SOUND, *captured]) == []
    assert problems(tmp_path, [*SOUND, *captured[1:]]) == []  # it began before the trace
    (line,) = problems(tmp_path, [*SOUND, *captured, call("cudaLaunchKernel", 460, 465, launch=100)])
    assert "1 of 11 launches" in line


def test_a_gpu_trace_that_is_cut_before_its_kernels_is_no_run_on_a_cpu(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", [*SOUND[::2], *SOUND[1::2]], kineto, **distributed(0))
    text = path.read_text()
    path.write_text(text[: text.index('"kernel"') - 20])
    trace = read_trace(path)
    (line,) = find_problems([summarize(trace)])
    assert line == "1 trace of a GPU is cut off or damaged before the GPU events: rank 0"
    skipped = {skip.analyzer: skip.reason for skip in analyze([path]).skipped}
    assert skipped["breakdown"] == "every trace is cut off or damaged before its GPU events"
    assert skipped["kernels"] == skipped["breakdown"]
