"""Traces made by hand: events as dictionaries, and files in every layout that exporters write.

Times are given in nanoseconds and written as microseconds with three decimals, as the profiler does.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]

PROCESS = 100
MAIN, AUTOGRAD = 100, 101


def us(ns: int) -> str:
    """A time that every layout writes as a number of microseconds with three decimals."""
    return f"@{ns}@"


def span(category: str, name: str, start: int, end: int, **more: Any) -> Event:
    """A complete event from start to end in nanoseconds; keywords replace its other keys."""
    event = {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": PROCESS,
        "tid": MAIN,
        "ts": us(start),
        "dur": us(end - start),
    }
    return {**event, **more}


def kernel(
    name: str, start: int, end: int, *, launch: int = -1, stream: int = 7, device: int = 0, **args: Any
) -> Event:
    """A kernel; ``launch`` is its correlation."""
    arguments: dict[str, Any] = {"device": device, "stream": stream, **args}
    if launch >= 0:
        arguments["correlation"] = launch
    return span("kernel", name, start, end, pid=device, tid=stream, args=arguments)


def copy(name: str, start: int, end: int, *, launch: int = -1, category: str = "gpu_memcpy", **args: Any) -> Event:
    """A copy (``category`` gpu_memcpy) or a fill (gpu_memset)."""
    return {**kernel(name, start, end, launch=launch, **args), "cat": category}


def call(name: str, start: int, end: int, *, launch: int, **more: Any) -> Event:
    """A call into the CUDA runtime."""
    return span("cuda_runtime", name, start, end, args={"correlation": launch}, **more)


def step(number: int, start: int, end: int) -> Event:
    """A profiler step on the host."""
    return span("user_annotation", f"ProfilerStep#{number}", start, end)


def document(events: Sequence[Event], **head: Any) -> dict[str, Any]:
    """A trace file's content."""
    return {"schemaVersion": 1, **head, "traceEvents": list(events), "traceName": "made.json"}


def distributed(rank: int, world_size: int = 1, groups: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The head of a trace of a distributed job."""
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size, "pg_config": list(groups)}}


def compact(content: Mapping[str, Any]) -> str:
    """One line without spaces."""
    return json.dumps(content, separators=(",", ":"))


def one_line(content: Mapping[str, Any]) -> str:
    """One line, as json.dump writes it."""
    return json.dumps(content)


def indented(content: Mapping[str, Any]) -> str:
    """Indented by two, one key a line."""
    return json.dumps(content, indent=2)


def kineto(content: Mapping[str, Any]) -> str:
    """As the profiler of torch 2.4 to 2.12 writes it."""
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in _around(content))
    events = ",\n".join(_kineto_event(event) for event in content["traceEvents"])
    return f'{{\n{head}  "traceEvents": [\n{events}\n  ],\n  "traceName": "made.json"\n}}\n'


def kineto_of_2_13(content: Mapping[str, Any]) -> str:
    """As the profiler of torch 2.13 writes it: one key a line, the comma on a line of its own before the arguments."""
    head = "".join(f"    {json.dumps(key)}: {json.dumps(value)},\n" for key, value in _around(content))
    events = ",\n".join(_kineto_event_of_2_13(event) for event in content["traceEvents"])
    return f' {{\n{head}    "traceEvents": [\n    \n{events}\n  ],"traceName": "made.json" }}'


def _around(content: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in content.items() if key not in ("traceEvents", "traceName")]


def _kineto_event(event: Event) -> str:
    keys = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in event.items() if key != "args"]
    lines = ",\n    ".join(", ".join(line) for line in (keys[:5], keys[5:]) if line)
    args = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in event.get("args", {}).items())
    tail = f',\n    "args": {{\n      {args}\n    }}' if "args" in event else ""
    return f"  {{\n    {lines}{tail}\n  }}"


def _kineto_event_of_2_13(event: Event) -> str:
    keys = [f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in event.items() if key != "args"]
    args = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in event.get("args", {}).items())
    tail = f'\n    ,\n    "args": {{\n      {args}\n    }}' if "args" in event else ""
    return "  {\n" + ",\n".join(keys) + tail + "\n  }"


LAYOUTS: tuple[Callable[[Mapping[str, Any]], str], ...] = (compact, one_line, indented, kineto, kineto_of_2_13)


def write(
    path: Path, events: Sequence[Event], layout: Callable[[Mapping[str, Any]], str] = kineto, **head: Any
) -> Path:
    """Write a trace; a name that ends in .gz is compressed."""
    text = in_microseconds(layout(document(events, **head))).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    return path


def in_microseconds(text: str) -> str:
    """Spell the times of a text out."""

    def spell(match: re.Match[str]) -> str:
        ns = int(match[1])
        return f"{'-' if ns < 0 else ''}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"

    return re.sub(r'"@(-?\d+)@"', spell, text)
