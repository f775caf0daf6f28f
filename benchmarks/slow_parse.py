"""A trace's events as the json module reads them, all of the file at once: slow, and plain enough to trust.

It shares no code with perfscope. Times are exact: microseconds are read as decimal fractions.
"""

from __future__ import annotations

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

MTIA = "mtia_ccp_events"
DEVICE = (MTIA, "kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime", "mtia_runtime")
ANNOTATIONS = ("user_annotation",)
OPERATORS = ("cpu_op", "Operator")
MARKS = ("ProfilerStep#", "enumerate(DataLoader)")

Rows = dict[str, list[tuple[Any, ...]]]


def parse(path: Path) -> dict[str, Any]:
    """The file's content; fractions are Decimal, and a bare list is that of the events."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    content = json.loads(text.decode("utf-8", "replace"), parse_float=Decimal, strict=False)
    return {"traceEvents": content} if isinstance(content, list) else content


def read(path: Path) -> Rows:
    """Name, start, duration and correlation of every event that perfscope reads, sorted, without repetitions."""
    events = parse(path)["traceEvents"]
    rows: Rows = {"device": [], "calls": [], "annotations": [], "operators": []}
    met = set()
    for event in events:
        kind = _kind(event)
        if kind is None or not isinstance(event.get("ts"), (int, str, Decimal)) or "dur" not in event:
            continue
        args = event.get("args") or {}
        row = (event["name"], _ns(event["ts"]), _ns(event["dur"]), _integer(args.get("correlation")))
        if row[2] < 0 or row[2] > 7 * 86400 * 10**9:
            continue
        whole = (*row, str(args.get("device", event.get("pid"))), str(args.get("stream", event.get("tid"))))
        if kind == "device" and row[3] != -1:
            if whole in met:
                continue
            met.add(whole)
        rows[kind].append(row)
    return {kind: sorted(members) for kind, members in rows.items()}


def _kind(event: dict[str, Any]) -> str | None:
    if event.get("ph") != "X":
        return None
    category = event.get("cat")
    if category == MTIA and event["name"].startswith("event_"):
        return None
    if category in DEVICE:
        return "device"
    if category in CALLS:
        return "calls"
    if category in ANNOTATIONS or (category == "Operator" and event["name"].startswith(MARKS)):
        return "annotations"
    return "operators" if category in OPERATORS else None


def _ns(microseconds: str | int | Decimal) -> int:
    return int((Decimal(microseconds) * 1000).to_integral_value())


def _integer(value: str | int | None) -> int:
    try:
        return -1 if value is None else int(value)
    except ValueError:
        return -1


class DeviceRow(NamedTuple):
    """An event of a device: where and when it ran, and when it was launched, if the trace shows that."""

    device: str
    start_ns: int
    end_ns: int
    launched_ns: int | None


def read_device(path: Path) -> tuple[list[DeviceRow], list[tuple[str, int, int]]]:
    """What ran on devices, without repetitions, and the marked steps with their times."""
    events = [event for event in parse(path)["traceEvents"] if _is_timed(event)]
    launches: dict[Any, int] = {}
    for event in events:
        correlation = (event.get("args") or {}).get("correlation")
        if _kind(event) == "calls" and correlation is not None:
            start_ns = _ns(event["ts"])
            launches[correlation] = min(launches.get(correlation, start_ns), start_ns)
    rows: dict[Any, DeviceRow] = {}
    for index, event in enumerate(events):
        if _kind(event) != "device":
            continue
        args = event.get("args") or {}
        start_ns, correlation = _ns(event["ts"]), args.get("correlation")
        device = str(args.get("device", event.get("pid")))
        row = DeviceRow(device, start_ns, start_ns + _ns(event["dur"]), launches.get(correlation))
        stream = str(args.get("stream", event.get("tid")))
        rows[index if correlation is None else (event["name"], correlation, stream, row)] = row
    steps = sorted(
        (event["name"], _ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"]))
        for event in events
        if _kind(event) == "annotations" and event["name"].startswith("ProfilerStep#")
    )
    return list(rows.values()), steps


def read_parts(path: Path) -> dict[str, list[tuple[Any, Any]]]:
    """Starts and ends of what some tools take for the work of devices, by name.

    ``calls`` are all events that name a stream, also calls of the host and waits; ``without_fills`` is what was
    launched in the trace, but fills; ``doubles`` is the work itself, with times that are binary fractions.
    """
    events = [event for event in parse(path)["traceEvents"] if event.get("ph") == "X" and _is_timed(event)]
    launched = {(event.get("args") or {}).get("correlation") for event in events if _kind(event) == "calls"}
    device = [event for event in events if _kind(event) == "device"]
    with_stream = [event for event in events if _integer((event.get("args") or {}).get("stream")) >= 0]
    filled = [
        event
        for event in device
        if event["cat"] not in ("gpu_memset", "Memset") and (event.get("args") or {}).get("correlation") in launched
    ]
    ends = [(float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in device]
    first = min((start for start, _ in ends), default=0.0)
    return {
        "calls": [_span(event) for event in with_stream],
        "without_fills": [_span(event) for event in filled],
        "doubles": [(1000 * (start - first), 1000 * (end - first)) for start, end in ends],
    }


def _span(event: dict[str, Any]) -> tuple[int, int]:
    start_ns = _ns(event["ts"])
    return start_ns, start_ns + _ns(event["dur"])


def read_overlap(path: Path) -> dict[str, tuple[int, int]]:
    """Intervals of the ``Overlap Analysis`` that torch_npu's profiler adds to a trace: their number and their sum."""
    events = parse(path)["traceEvents"]
    processes = {event["pid"]: event["args"].get("name") for event in events if event.get("name") == "process_name"}
    sums: dict[str, tuple[int, int]] = {}
    for event in events:
        if event.get("ph") == "X" and processes.get(event["pid"]) == "Overlap Analysis":
            count, total = sums.get(event["name"], (0, 0))
            sums[event["name"]] = count + 1, total + _ns(event["dur"])
    return sums


def _is_timed(event: dict[str, Any]) -> bool:
    if not isinstance(event.get("ts"), (int, str, Decimal)) or "dur" not in event:
        return False
    return 0 <= _ns(event["dur"]) <= 7 * 86400 * 10**9


def read_xplane(path: Path) -> list[tuple[int, int, str, int, int, int]]:
    """What ran on devices by a profile of JAX: device, stream, name, start and duration in ns, correlation; sorted.

    XSpace has planes (1); a plane its name (2), lines (3) and maps of names of events (4) and of what is stated (5); a
    line an id (1), a name (2), a time in ns (3) and events (4); an event the number of its name (1), offset (2) and
    duration (3) in ps, and statements (4), of a number (1) and a value (3 or 4).
    """
    rows = []
    for plane in _all(_fields(path.read_bytes()), 1):
        content = _fields(plane)
        kind = re.match(r"/device:(?:GPU|TPU):(\d+)", _text(content, 2))
        names, stated = _names(content, 4), _names(content, 5)
        for line in map(_fields, _all(content, 3)):
            stream = re.search(r"Stream #(\d+)", _text(line, 2))
            if kind is None or not (stream or _text(line, 2) == "XLA Ops"):
                continue
            number = int(stream[1]) if stream else _number(line, 1)
            for event in map(_fields, _all(line, 4)):
                begin_ps, base_ns = _number(event, 2), _number(line, 3)
                end_ns = base_ns + (begin_ps + _number(event, 3)) // 1000
                start_ns = base_ns + begin_ps // 1000
                said = [_fields(each) for each in _all(event, 4)]
                ids = [
                    (_all(each, 3) or _all(each, 4))[0]
                    for each in said
                    if stated.get(_number(each, 1)) == "correlation_id"
                ]
                name = names.get(_number(event, 1), "")
                rows.append((int(kind[1]), number, name, start_ns, end_ns - start_ns, ids[0] if ids else -1))
    return sorted(rows)


def _fields(content: bytes) -> list[tuple[int, Any]]:
    """The fields of a message of protocol buffers: numbers, and what they hold."""
    fields, at = [], 0
    while at < len(content):
        key, at = _varint(content, at)
        wire = key & 7
        value: Any
        if wire == 0:
            value, at = _varint(content, at)
        else:
            size, at = _varint(content, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)  # noqa: PLR2004
            value, at = content[at : at + size], at + size
        fields.append((key >> 3, value))
    return fields


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (content[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if content[at - 1] < 128:  # noqa: PLR2004
            return value, at


def _all(fields: list[tuple[int, Any]], number: int) -> list[Any]:
    return [value for key, value in fields if key == number]


def _text(fields: list[tuple[int, Any]], number: int) -> str:
    return b"".join(_all(fields, number)[-1:]).decode("utf-8", "replace")


def _number(fields: list[tuple[int, Any]], number: int) -> int:
    return int((_all(fields, number) or [0])[-1])


def _names(plane: list[tuple[int, Any]], number: int) -> dict[int, str]:
    entries = [_fields(entry) for entry in _all(plane, number)]
    return {_number(entry, 1): _text(_fields(_all(entry, 2)[-1]), 2) for entry in entries if _all(entry, 2)}
