"""What people give that is no good trace: a clear line each, no traceback, and nothing silently zero."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.errors import NotATrace
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, Events
from tests.conftest import perfscope
from tests.sources.traces.making import call, compact, distributed, kernel, kineto, span, step, write


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "bad.json is empty"),
        (b"not json at all", "bad.json is not a trace"),
        (b'{"model": "gpt"}', "bad.json is not a trace"),
        (b'{"traceEvents": 5}', "bad.json is not a trace"),
        (b'{"traceEvents": ["a", 5, null, [1]]}', "bad.json is not a trace"),
        (b'{"traceEvents":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "bad.json is not a trace"),
        (b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "bad.json is not a trace"),
        (gzip.compress(b" " * (8 << 20), mtime=0) * 40, "bad.json inflates to more than 200 times its size"),
        (b"\x1f\x8b\x08\x00\x00", "bad.json is empty"),
    ],
    ids=["empty", "text", "other", "odd", "no events", "deep events", "deep", "bomb", "stump"],
)
def test_one_file_that_is_no_trace_is_one_line(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    answer = perfscope("analyze", "bad.json", cwd=tmp_path)
    assert (answer.code, answer.stdout) == (1, "")
    assert answer.stderr.startswith(f"perfscope: {problem}")
    assert len(answer.stderr.splitlines()) <= 2


@pytest.mark.parametrize("layout", [kineto, compact])
def test_an_event_that_is_nested_too_deeply_is_told_and_left_out(tmp_path: Path, layout: Callable[..., str]) -> None:
    deep = kernel("deep", 20, 30, nested="@deep@")
    path = write(
        tmp_path / "rank0.json", [kernel("gemm", 0, 10), deep, kernel("gemm", 40, 50)], layout, **distributed(0)
    )
    path.write_text(path.read_text().replace('"@deep@"', "[" * 10_000 + "]" * 10_000))
    answer = perfscope("analyze", "--only", "breakdown", "--format", "json", "rank0.json", cwd=tmp_path)
    assert answer.code == 4
    assert answer.stderr == "perfscope: warning: rank0.json: 1 of its events cannot be read and are left out\n"
    (entry,) = json.loads(answer.stdout)["results"]["breakdown"]["ranks"]
    assert (entry["device_events"], entry["compute_us"], entry["damaged"]) == (2, 0.02, True)


def test_a_folder_without_traces_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    answer = perfscope("analyze", "empty", cwd=tmp_path)
    assert answer.code == 1
    assert answer.stderr.startswith("perfscope: empty contains no trace\n")


def test_a_trace_without_gpu_events_says_what_is_not_computed(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", [step(1, 0, 100)], **distributed(0))
    answer = perfscope("analyze", "--format", "json", "rank0.json", cwd=tmp_path)
    assert answer.code == 0
    document = json.loads(answer.stdout)
    assert document["results"] == {}
    reasons = {skip["analyzer"]: skip["reason"] for skip in document["skipped"]}
    assert reasons["breakdown"] == "1 rank: the trace contains no GPU events: CPU run, or a profiler conflict"


def test_impossible_durations_are_told_and_left_out(tmp_path: Path) -> None:
    events = [kernel("gemm", 0, 100), kernel("endless", 0, 10**18), kernel("backwards", 500, 400)]
    write(tmp_path / "rank0.json", events, **distributed(0))
    answer = perfscope("analyze", "--format", "json", "rank0.json", cwd=tmp_path)
    assert answer.code == 4
    (entry,) = json.loads(answer.stdout)["results"]["breakdown"]["ranks"]
    assert entry["window_us"] == 0.1
    assert "1 events have a negative duration and are left out" in answer.stderr
    assert "1 events have a duration of more than seven days and are left out" in answer.stderr


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "wrong",
    [
        {"ts": 9.2e15},
        {"ts": -9.2e15},
        {"ts": 1e300},
        {"dur": 1e300},
        {"tid": 10**40},
        {"args": {"Sequence number": 10**40, "Input Dims": [[2, 3], [3, 4]]}},
        {"args": {"Input Dims": 5}},
        {"args": {"Input Dims": [[10**4200]]}},
    ],
    ids=["late", "early", "endless", "long", "thread", "sequence", "no list", "digits"],
)
def test_numbers_that_cannot_be_are_left_out(tmp_path: Path, wrong: dict[str, object]) -> None:
    """Two times at both ends of 64 bits have a difference that does not fit into them."""
    events = [kernel("gemm", 0, 10), span("cpu_op", "aten::mm", 0, 10), span("cpu_op", "aten::mm", 20, 30)]
    path = write(tmp_path / "rank0.json", [kernel("late", 40, 50), *events], kineto, **distributed(0))
    content = json.loads(path.read_text())
    content["traceEvents"][-1].update(wrong)
    if "tid" not in wrong and "args" not in wrong:
        content["traceEvents"][0].update(wrong)
    path.write_text(json.dumps(content, indent=1))
    trace = read_trace(str(path), BASIC_EVENTS | Events.PRODUCTS)
    assert trace.device.end_ns.max() < 10**6
    assert trace.products is not None
    assert (trace.products.calls.end_ns < 10**6).all()


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
