"""Traces of torch_npu's profiler: what runs on an Ascend NPU is read, by the profiler's own rules."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import breakdown
from perfscope.errors import NotATrace, SourceError
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import ABSENT, Trace, Work
from tests.analyzers.flops.making import answer

PYTHON, NPU, HCCL, CANN, OVERLAP = 7, 100, 101, 102, 103
BASE_US = 1_736_408_883_000_000
MATMUL, COPY, REDUCE = "aclnnMm_MatMulV2", "MEMCPY_ASYNC", "hcom_allReduce__586_0_1"


def meta(name: str, title: str, **place: int) -> dict[str, Any]:
    return {"name": name, "ph": "M", "args": {"name": title}, **place}


def at(microseconds: float) -> str:
    """A time as the profiler writes it: digits in quotes, since 1970."""
    return f"{BASE_US + int(microseconds)}.{round(microseconds % 1 * 1000):03d}"


def timed(name: str, start: float, duration: float, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"name": name, "ph": "X", "pid": pid, "tid": tid, "ts": at(start), "dur": duration, "args": args}


def task(name: str, start: float, duration: float, kind: str, connection: int, stream: int = 2) -> dict[str, Any]:
    return timed(name, start, duration, NPU, stream, **{"Task Type": kind, "connection_id": connection})


def operator(name: str, start: float, duration: float) -> dict[str, Any]:
    dims = {"Input Dims": "0;\r\n", "Input type": "float;\r\nNone"}
    return {**timed(name, start, duration, PYTHON, PYTHON, **dims), "cat": "cpu_op"}


def arrow(connection: int, start: float, end: float, stream: int = 2) -> list[dict[str, Any]]:
    ends = {"ph": "f", "id": connection, "pid": NPU, "tid": stream, "ts": at(end), "cat": "async_npu"}
    return [{"ph": "s", "id": connection, "pid": PYTHON, "tid": PYTHON, "ts": at(start), "cat": "async_npu"}, ends]


PROCESSES = [
    meta("process_name", name, pid=pid)
    for pid, name in ((NPU, "Ascend Hardware"), (HCCL, "HCCL"), (CANN, "CANN"), (OVERLAP, "Overlap Analysis"))
]
OPERATORS = [operator("aten::mm", 0, 50.5), operator("ProfilerStep#5", 0, 1_000)]
TASKS = [
    task(MATMUL, 100, 300.0625, "AI_CORE", 11),
    task("EVENT_WAIT", 50, 5_000, "EVENT_WAIT_SQE", 12),
    task(COPY, 500, 100, "PCIE_DMA_SQE", 13),
    # The collective's own tasks are no work beside it.
    task("SDMA", 300, 10, "SDMA", 14, stream=4),
    task("Notify Wait", 310, 300, "Notify Wait", 14, stream=4),
]
COLLECTIVE = [
    meta("thread_name", "Group 0 Communication", pid=HCCL, tid=0),
    meta("thread_name", "Plane 0", pid=HCCL, tid=1),
    timed(REDUCE, 300, 400.5, HCCL, 0, connection_id=14, count=4_097_000, data_type="FP32"),
    timed("Notify_Wait", 310, 300, HCCL, 1, **{"task type": "Notify_Wait"}),
]
CALLS = [
    timed("Node@launch", 20, 5, CANN, PYTHON, connection_id=11),
    timed("AscendCL@aclrtMemcpyAsync", 30, 5, CANN, PYTHON, connection_id=13),
    timed("Node@launch", 40, 5, CANN, PYTHON, connection_id=14),
]


def write(path: Path, *parts: list[dict[str, Any]]) -> Path:
    text = json.dumps([event for part in parts for event in part]).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def device_of(trace: Trace) -> list[tuple[Any, ...]]:
    device = trace.device
    columns = (device.work, device.start_ns, device.duration_ns, device.device, device.stream, device.correlation)
    return [
        (trace.names[name], *values)
        for name, values in zip(device.name, zip(*(column.tolist() for column in columns), strict=True), strict=True)
    ]


@pytest.mark.parametrize("name", ["trace_view.json", "trace_view.json.gz"])
def test_tasks_and_collectives_are_device_time_and_waits_are_none(name: str, tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / name, OPERATORS, TASKS, PROCESSES, COLLECTIVE, CALLS))
    assert device_of(trace) == [
        (MATMUL, Work.COMPUTE, 100_000, 300_062, 0, 2, 11),
        (REDUCE, Work.COMMUNICATION, 300_000, 400_500, 0, 0, 14),
        (COPY, Work.COPY, 500_000, 100_000, 0, 2, 13),
    ]
    assert (trace.exporter, trace.base_ns, trace.damage) == ("torch_npu on Ascend", BASE_US * 1000, ())
    assert [trace.names[name] for name in trace.operators.name] == ["aten::mm"]


def test_steps_are_by_what_was_launched_in_them(tmp_path: Path) -> None:
    """Compute, communication and exposed communication are those of the profiler's own `Overlap Analysis`."""
    trace = read_trace(write(tmp_path / "trace_view.json", OPERATORS, TASKS, PROCESSES, COLLECTIVE, CALLS))
    (part,) = breakdown.measure(trace)
    (step,) = part.steps
    assert step.name == "ProfilerStep#5"
    assert (step.parts.compute, step.parts.communication, step.parts.exposed_communication) == (
        300_062, 400_500, 300_438,
    )  # fmt: skip
    assert step.parts == part.total


def test_without_calls_of_the_runtime_arrows_say_what_launched(tmp_path: Path) -> None:
    late = [task(MATMUL, 2_000, 100, "AI_CORE", 15), *arrow(15, 1_500, 2_000)]
    path = write(tmp_path / "trace_view.json", OPERATORS, TASKS, PROCESSES, COLLECTIVE, arrow(11, 20, 100), late)
    trace = read_trace(path)
    assert [(trace.names[event], launch) for event, launch in zip(trace.device.name, trace.launch, strict=True)] == [
        (MATMUL, 0), (REDUCE, ABSENT), (COPY, ABSENT), (MATMUL, 1),
    ]  # fmt: skip
    assert [step.parts.compute for step in breakdown.measure(trace)[0].steps] == [300_062]


def test_the_rank_is_that_of_the_file_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "host_1_ascend_pt"
    path = write(folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", TASKS, PROCESSES)
    (folder / "profiler_info_3.json").write_text("{}")
    assert read_trace(path).rank == 3


def test_the_answer_names_the_profiler(tmp_path: Path) -> None:
    path = write(tmp_path / "trace_view.json", OPERATORS, TASKS, PROCESSES, COLLECTIVE, CALLS)
    results = answer("analyze", path, "--only", "breakdown,host")["results"]
    assert results["breakdown"]["ranks"][0]["window_us"] == 600.5
    assert any("torch_npu on Ascend" in note for note in results["breakdown"]["notes"])
    assert results.get("host") is None, "the host's operators are not all that ran"


def test_a_trace_of_an_npu_without_tasks_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotATrace, match="torch_npu on Ascend without anything that ran on an NPU"):
        read_trace(write(tmp_path / "trace_view.json", OPERATORS, PROCESSES))


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_is_said_and_costs_what_is_behind_it(seed: int, tmp_path: Path) -> None:
    path = write(tmp_path / "trace_view.json", PROCESSES, OPERATORS, COLLECTIVE, CALLS, TASKS)
    content = path.read_bytes()
    whole = device_of(read_trace(path))
    path.write_bytes(content[: random.Random(seed).randrange(len(content))])
    try:
        trace = read_trace(path)
    except SourceError:
        return
    assert trace.damage
    assert len(device_of(trace)) <= len(whole)


def test_a_flipped_bit_is_no_error(tmp_path: Path) -> None:
    """Plain text has no checksum: what becomes another number or name is not known to be wrong."""
    path = write(tmp_path / "trace_view.json", PROCESSES, OPERATORS, TASKS, COLLECTIVE, CALLS)
    content = path.read_bytes()
    order = random.Random(7)
    for _ in range(200):
        place = order.randrange(len(content))
        flipped = bytes([content[place] ^ 1 << order.randrange(8)])
        path.write_bytes(content[:place] + flipped + content[place + 1 :])
        with contextlib.suppress(SourceError):
            read_trace(path)


@pytest.mark.parametrize("written", ["NaN", "Infinity", "1e999999", "-1e30"])
def test_times_that_cannot_be_are_left_out_and_said(written: str, tmp_path: Path) -> None:
    path = write(tmp_path / "trace_view.json", [{**TASKS[0], "ts": written}], TASKS[1:], PROCESSES, COLLECTIVE)
    trace = read_trace(path)
    assert [event[0] for event in device_of(trace)] == [REDUCE, COPY]
    assert any("1 of its events cannot be read" in line for line in trace.damage)
