"""Profiles of JAX, written here by the wire format, and traces of MTIA."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.errors import NotATrace
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import Trace, Work
from tests.analyzers.flops.making import answer
from tests.sources.traces.making import call, span, write

Field = tuple[int, int | bytes]

GEMM, COPY, REDUCE = "Cijk_Ailk_Bljk_BBS", "MemcpyH2D", "all-reduce.7"
#: Name, start and duration in picoseconds, correlation.
STREAM = ((GEMM, 1_500, 2_000_700, 11), (COPY, 3_000_000, 1_000_000, 12), (REDUCE, 5_000_000, 500_000, 13))
CALLS = (("hipModuleLaunchKernel", 0, 500_000, 11), ("hipMemcpyHtoDAsync", 600_000, 100_000, 12))


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def message(*fields: Field) -> bytes:
    text = b""
    for number, value in fields:
        if isinstance(value, int):
            text += varint(number << 3) + varint(value)
        else:
            text += varint(number << 3 | 2) + varint(len(value)) + value
    return text


def named(number: int, name: str) -> bytes:
    """An entry of a map from ids to metadata."""
    return message((1, number), (2, message((1, number), (2, name.encode()))))


def plane(name: str, lines: Sequence[tuple[int, str, Sequence[tuple[str, int, int, int]]]], base_ns: int) -> bytes:
    numbers: dict[str, int] = {}
    texts = []
    for number, title, events in lines:
        members: list[Field] = []
        for event, start_ps, duration_ps, correlation in events:
            index = numbers.setdefault(event, len(numbers) + 1)
            stats: list[Field] = [(4, message((1, 5), (2, b"12345678"))), (4, message((1, 9), (3, correlation)))]
            members.append((4, message((1, index), (2, start_ps), (3, duration_ps), *stats)))
        texts.append(message((1, number), (2, title.encode()), (3, base_ns), *members))
    entries = [named(index, event) for event, index in numbers.items()]
    return message(
        (2, name.encode()),
        *((3, text) for text in texts),
        *((4, entry) for entry in entries),
        (5, named(9, "correlation_id")),
    )


def xspace(base_ns: int = 7_000) -> bytes:
    planes = (
        plane("/host:metadata", [], 0),
        plane("/device:GPU:1", [(16, "Stream #16(Kernel)", STREAM), (3, "XLA Modules", STREAM)], base_ns),
        plane("/host:CPU", [(1083, "Host Threads/1083", CALLS), (5, "python", (("isinstance", 0, 9, 1),))], base_ns),
    )
    return message(*((1, each) for each in planes), (4, b"host-a"))


def device_of(trace: Trace) -> list[tuple[Any, ...]]:
    device = trace.device
    columns = (device.work, device.start_ns, device.duration_ns, device.device, device.stream, device.correlation)
    return [
        (trace.names[name], *values)
        for name, values in zip(device.name, zip(*(column.tolist() for column in columns), strict=True), strict=True)
    ]


DEVICE = [
    (GEMM, Work.COMPUTE, 1, 2001, 1, 16, 11),
    (COPY, Work.COPY, 3000, 1000, 1, 16, 12),
    (REDUCE, Work.COMMUNICATION, 5000, 500, 1, 16, 13),
]


@pytest.mark.parametrize("is_compressed", [False, True])
def test_xplane_has_what_ran_on_devices_and_what_launched_it(tmp_path: Path, is_compressed: bool) -> None:
    """Streams alone: the lines of modules show the same time again."""
    path = tmp_path / ("host.xplane.pb.gz" if is_compressed else "host.xplane.pb")
    path.write_bytes(gzip.compress(xspace()) if is_compressed else xspace())
    trace = read_trace(path)
    assert device_of(trace) == DEVICE
    assert (trace.host, trace.exporter, trace.damage, trace.base_ns) == ("host-a", "JAX (XPlane)", (), 7_000)
    assert [trace.names[name] for name in trace.calls.name] == [name for name, *_ in CALLS]
    assert trace.launch.tolist() == [0, 1, -1]


def test_a_folder_of_xplane_is_analyzed_and_named(tmp_path: Path) -> None:
    (tmp_path / "host.xplane.pb").write_bytes(xspace())
    found = answer("analyze", tmp_path, "--only", "breakdown")["results"]["breakdown"]
    (rank,) = found["ranks"]
    assert rank["device"] == 1
    assert any("From a profile of JAX (XPlane)" in note for note in found["notes"])


def test_what_is_cut_off_of_xplane_is_said(tmp_path: Path) -> None:
    path, content = tmp_path / "host.xplane.pb", xspace()
    for end in range(len(content)):
        path.write_bytes(content[:end])
        try:
            trace = read_trace(path)
        except NotATrace as error:
            assert "is a profile of JAX (XPlane)" in str(error)  # noqa: PT017 - most cuts leave no device
            continue
        assert trace.damage or [event[0] for event in device_of(trace)] == [GEMM, COPY, REDUCE]


def export() -> list[dict[str, Any]]:
    def meta(name: str, title: str, **place: int) -> dict[str, Any]:
        return {"ph": "M", "name": name, "args": {"name": title}, **place}

    def spans(events: Sequence[tuple[str, int, int, int]], pid: int, tid: int) -> list[dict[str, Any]]:
        return [
            {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": start / 1e6, "dur": duration / 1e6,
             "args": {"correlation_id": str(correlation)}}
            for name, start, duration, correlation in events
        ]  # fmt: skip

    whole = [(name, start // 1000 * 1000, duration // 1000 * 1000, number) for name, start, duration, number in STREAM]
    return [
        meta("process_name", "/device:GPU:1", pid=2),
        meta("process_name", "/host:CPU", pid=701),
        meta("thread_name", "Stream #16(Compute)", pid=2, tid=40),
        meta("thread_name", "XLA Modules", pid=2, tid=41),
        meta("thread_name", "python", pid=701, tid=1),
        *spans(whole, 2, 40),
        *spans(whole, 2, 41),
        *spans(CALLS, 701, 1),
    ]


def test_the_export_for_chrome_has_the_same(tmp_path: Path) -> None:
    path = tmp_path / "host.trace.json.gz"
    content = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": export()}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    trace = read_trace(path)
    assert [event[:2] + event[4:] for event in device_of(trace)] == [event[:2] + event[4:] for event in DEVICE]
    assert trace.device.start_ns.tolist() == [1, 3000, 5000]
    assert (trace.exporter, len(trace.calls)) == ("JAX (export for Chrome)", 2)


def test_a_profile_of_a_cpu_is_named_and_not_analyzed(tmp_path: Path) -> None:
    content = {"traceEvents": [event for event in export() if event["pid"] == 701]}
    (tmp_path / "host.trace.json").write_text(json.dumps(content))
    with pytest.raises(NotATrace, match=r"is a profile of JAX .* without anything that ran on a device"):
        read_trace(tmp_path / "host.trace.json")


def test_events_of_mtia_are_those_of_a_device_and_its_waits_are_none(tmp_path: Path) -> None:
    def engine(name: str, start: int, end: int, **args: Any) -> dict[str, Any]:
        return span("mtia_ccp_events", name, start, end, pid=9, tid=4, args={"stream": 102, **args})

    path = write(
        tmp_path / "rank0.json",
        [
            {**call("runFunction - job_prep_and_submit_for_execution", 0, 50, launch=5), "cat": "mtia_runtime"},
            engine("fc-dtype_Float", 100, 300, correlation=5),
            engine("dma_request", 200, 400, direction="HOST_TO_DEVICE", size=16),
            engine("event_wait", 100, 9_000, seq_num=1),
            engine("event_record", 9_000, 9_001, seq_num=1),
        ],
    )
    trace = read_trace(path)
    assert [(event[0], event[1]) for event in device_of(trace)] == [
        ("fc-dtype_Float", Work.COMPUTE), ("dma_request", Work.COPY),
    ]  # fmt: skip
    assert trace.launch.tolist() == [0, -1]
    found = answer("analyze", path, "--only", "breakdown")["results"]["breakdown"]
    assert found["ranks"][0]["window_us"] == 0.3
    assert any("torch.profiler on MTIA" in note for note in found["notes"])
