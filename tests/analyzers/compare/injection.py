"""Puts a change into a real trace: more time at some moments, for everything on the host and on the device."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import ROOT

TRACE = ROOT / "fixtures" / "traces" / "ddp4" / "rank0.pt.trace.json.gz"
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

Content = dict[str, Any]


def load() -> Content:
    content: Content = json.loads(gzip.decompress(TRACE.read_bytes()))
    return content


def save(content: Content, folder: Path, name: str) -> Path:
    path = folder / name / "rank0.pt.trace.json"
    path.parent.mkdir()
    path.write_text(json.dumps(content))
    return path


def start_ns(event: Mapping[str, Any]) -> int:
    return round(float(event["ts"]) * 1000)


def end_ns(event: Mapping[str, Any]) -> int:
    return start_ns(event) + round(float(event.get("dur", 0)) * 1000)


def is_of_device(event: Mapping[str, Any]) -> bool:
    return event.get("cat") in _DEVICE


def insert(content: Content, moments: Mapping[int, int]) -> None:
    """At each moment let so many nanoseconds more pass; what was under way then takes longer."""
    points = np.array(sorted(moments), np.int64)
    total = np.concatenate([[0], np.cumsum([moments[point] for point in points.tolist()])])
    for event in content["traceEvents"]:
        if "ts" not in event:
            continue
        start, end = start_ns(event), end_ns(event)
        moved = [moment + int(total[np.searchsorted(points, moment, side="right")]) for moment in (start, end)]
        event["ts"] = moved[0] / 1000
        if "dur" in event:
            event["dur"] = (moved[1] - moved[0]) / 1000


def marks(content: Content) -> list[Mapping[str, Any]]:
    return [
        event
        for event in content["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
    ]


def slow_down(content: Content, name: str, extra_ns: int) -> int:
    """Let every launch of a kernel take longer; returns how many there are."""
    ends = [end_ns(event) for event in content["traceEvents"] if is_of_device(event) and event["name"] == name]
    insert(content, dict.fromkeys(ends, extra_ns))
    return len(ends)


def edit(folder: Path, name: str, change: Callable[[Content], object]) -> Path:
    """The trace with a change, as a file in a folder of its own."""
    content = load()
    change(content)
    return save(content, folder, name)


def add_collective(content: Content, extra_ns: int) -> None:
    """In the middle of each step, run one more exposed collective before the next kernel."""
    launches = {
        event["args"]["correlation"]: event
        for event in content["traceEvents"]
        if event.get("cat") == "cuda_runtime" and "correlation" in event.get("args", {})
    }
    pattern = next(event for event in content["traceEvents"] if is_of_device(event) and "nccl" in event["name"])
    added, moments = [], {}
    for number, mark in enumerate(marks(content)):
        inside = [
            event
            for event in content["traceEvents"]
            if event.get("cat") == "kernel"
            and "nccl" not in event["name"]
            and event["args"]["correlation"] in launches
            and start_ns(mark) <= start_ns(launches[event["args"]["correlation"]]) < end_ns(mark)
        ]
        inside.sort(key=start_ns)
        following = inside[len(inside) // 2]
        launch = copy.deepcopy(launches[following["args"]["correlation"]])
        collective = copy.deepcopy(pattern)
        launch["args"]["correlation"] = collective["args"]["correlation"] = 10**8 + number
        moments[start_ns(following)] = extra_ns
        added.append((launch, collective, start_ns(following)))
    insert(content, moments)
    for launch, collective, moment in added:
        before = sum(extra for point, extra in moments.items() if point < moment)
        collective["ts"], collective["dur"] = (moment + before) / 1000, extra_ns / 1000
        moved = sum(extra for point, extra in moments.items() if point <= start_ns(launch))
        launch["ts"] = (start_ns(launch) + moved) / 1000
        content["traceEvents"] += [launch, collective]
