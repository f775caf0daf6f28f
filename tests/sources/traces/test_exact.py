"""What perfscope reads is what parsing the whole file with the json module gives, however the file is written."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import Trace
from tests.conftest import ROOT
from tests.sources.traces import slow_parse
from tests.sources.traces.making import Event, document, in_microseconds, indented, kernel, kineto, span

FIXTURES = sorted((ROOT / "fixtures" / "traces").rglob("*.json.gz"))
#: One of several GPUs, one of one GPU, one of CPUs.
WRITTEN_AGAIN = [ROOT / "fixtures" / "traces" / name / "rank0.pt.trace.json.gz" for name in ("ddp4", "single", "gloo2")]
MOST_EVENTS = 4000


def shuffled(content: dict[str, Any]) -> str:
    """Every event with its keys in an order of its own."""
    order = random.Random(5)

    def shuffle(event: Event) -> Event:
        keys = list(event)
        order.shuffle(keys)
        return {key: event[key] for key in keys}

    return json.dumps({**content, "traceEvents": [shuffle(event) for event in content["traceEvents"]]})


def with_one_line_in_the_middle(content: dict[str, Any]) -> str:
    """Indented, but for a stretch of events that another tool wrote in one line."""
    events = content["traceEvents"]
    begin, end = len(events) // 3, len(events) // 3 + 200
    lines = [json.dumps(event, indent=4) for event in events]
    lines[begin:end] = [", ".join(json.dumps(event) for event in events[begin:end])]
    head = json.dumps({**content, "traceEvents": []})
    return head.replace('"traceEvents": []', '"traceEvents": [\n' + ",\n".join(lines) + "\n]")


WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "one line": json.dumps,
    "compact": lambda content: json.dumps(content, separators=(",", ":")),
    "indented": lambda content: json.dumps(content, indent=2),
    "sorted and indented": lambda content: json.dumps(content, sort_keys=True, indent=1),
    "shuffled": shuffled,
    "windows": lambda content: json.dumps(content, indent=2).replace("\n", "\r\n"),
    "not escaped": lambda content: json.dumps(content, ensure_ascii=False),
    "escaped": lambda content: json.dumps(content).replace('"X"', '"\\u0058"').replace('"kernel"', '"\\u006bernel"'),
    "mixed": with_one_line_in_the_middle,
    "a list": lambda content: json.dumps(content["traceEvents"]),
}


def rows(trace: Trace) -> slow_parse.Rows:
    tables = {name: getattr(trace, name) for name in ("device", "calls", "annotations", "operators")}
    return {
        name: sorted(
            zip(
                (trace.names[index] for index in table.name),
                table.start_ns.tolist(),
                table.duration_ns.tolist(),
                table.correlation.tolist(),
                strict=True,
            )
        )
        for name, table in tables.items()
    }


@pytest.fixture(scope="module", params=WRITTEN_AGAIN, ids=lambda path: f"{path.parent.name}-{path.name.split('.')[0]}")
def content(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A fixture's content, with evenly spaced events where it is large."""
    whole = slow_parse.parse(request.param)
    text = json.dumps(whole, default=float)
    content: dict[str, Any] = json.loads(text)
    events = content["traceEvents"]
    content["traceEvents"] = events[:: 1 + len(events) // MOST_EVENTS]
    return content


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: f"{path.parent.name}-{path.name.split('.')[0]}")
def test_real_traces_are_read_exactly(path: Path) -> None:
    trace = read_trace(path)
    assert rows(trace) == slow_parse.read(path)
    assert trace.damage == ()


@pytest.mark.parametrize("writer", WRITERS)
def test_another_way_of_writing_changes_nothing(content: dict[str, Any], tmp_path: Path, writer: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(WRITERS[writer](content).encode())
    trace = read_trace(path)
    assert rows(trace) == slow_parse.read(path)
    assert trace.damage == ()


def test_objects_in_a_list_that_are_written_like_events_are_none(tmp_path: Path) -> None:
    nested = [kernel("not an event", 0, 5, launch=7) for _ in range(3)]
    events = [kernel(f"k{n}", 10 * n, 10 * n + 5, launch=n) for n in range(5)]
    path = tmp_path / "rank0.json"
    for layout in (kineto, indented, json.dumps):
        text = layout(document([*events, span("gpu_user_annotation", "g", 0, 9, args={"list": "@list@"}), *events[:1]]))
        inner = layout(document(nested))
        inner = inner[inner.index("[") : inner.rindex("]") + 1]
        path.write_text(in_microseconds(text.replace('"@list@"', inner)))
        trace = read_trace(path)
        assert rows(trace) == slow_parse.read(path)
        assert len(trace.device) == 5


def test_events_that_are_there_twice_are_said(tmp_path: Path) -> None:
    events = [kernel(f"k{n}", 10 * n, 10 * n + 5, launch=n) for n in range(5)]
    path = tmp_path / "rank0.json"
    path.write_text(in_microseconds(kineto(document([*events, *events[:2]]))))
    trace = read_trace(path)
    assert len(trace.device) == 5
    assert trace.damage == (f"{path}: 2 of its device events are there twice, and are counted once",)
