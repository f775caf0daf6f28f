"""Traces of other tools in Chrome's format are refused; none is called a CPU run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.errors import NotATrace
from perfscope.sources.traces.reader import read_trace
from tests.sources.traces.making import call, kernel, span, write

ROCPROF: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": "0", "args": {"name": "CPU HIP API"}},
    {"args": {"name": "GPU0"}, "ph": "M", "name": "process_name", "pid": "6"},
    {"ph": "X", "name": "matmul_kernel", "pid": "6", "tid": "1", "ts": "5", "dur": "8", "args": {"BeginNs": "5126"}},
]
ASYNC = [{"cat": "resnet50", "ph": phase, "id": 1, "pid": 1, "ts": 5 * at} for at, phase in enumerate("be")]
WITHOUT_CATEGORY = [{"name": "[MEMCPY] HtoD", "ph": "X", "ts": 1.5, "dur": 8.0, "pid": 1, "tid": 7}]


@pytest.mark.parametrize("events", [ROCPROF, ASYNC, WITHOUT_CATEGORY])
@pytest.mark.parametrize("is_list", [False, True])
def test_a_trace_of_another_tool_is_refused(events: list[dict[str, Any]], is_list: bool, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events if is_list else {"otherData": {}, "traceEvents": events}))
    with pytest.raises(NotATrace, match=r"is a trace of another tool: torch\.profiler writes none"):
        read_trace(path)


def test_windows_without_work_are_those_of_torch_profiler(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.json", [span("Trace", "PyTorch Profiler (0)", 0, 100)])
    assert not len(read_trace(empty).device)
    (tmp_path / "none.json").write_text('{"traceEvents": []}')
    assert not len(read_trace(tmp_path / "none.json").device)


def test_a_kernel_of_intels_xpu_runs_on_its_queue(tmp_path: Path) -> None:
    """Its events name no stream, but queues; the thread of an event is one."""
    queue = {"sycl queue": 64, "l0 queue": "0x55d0c8"}
    ran = kernel("gemm_kernel", 10, 20, launch=5)
    ran = {**ran, "tid": 64, "args": {key: value for key, value in ran["args"].items() if key != "stream"} | queue}
    launched = {**call("urEnqueueKernelLaunch", 0, 5, launch=5), "cat": "xpu_runtime"}
    trace = read_trace(write(tmp_path / "rank0.json", [launched, ran]))
    assert (trace.device.stream.tolist(), trace.launch.tolist()) == ([64], [0])
