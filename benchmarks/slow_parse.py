"""A trace's events as the json module reads them, all of the file at once: slow, and plain enough to trust.

It shares no code with perfscope. Times are exact: microseconds are read as decimal fractions.
"""

from __future__ import annotations

import gzip
import json
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


def _is_timed(event: dict[str, Any]) -> bool:
    if not isinstance(event.get("ts"), (int, str, Decimal)) or "dur" not in event:
        return False
    return 0 <= _ns(event["dur"]) <= 7 * 86400 * 10**9
