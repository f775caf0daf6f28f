"""Marks that are written into a finished trace: where they belong, in torch's own form, or not at all."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from perfscope.hooks.profiler.trace_marks import Mark, add_marks
from perfscope.sources.traces.layout import find_layout, start_of_events
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import Events

BASE_NS = 1_790_000_000_000_000_000


def event(name: str, **others: object) -> dict[str, object]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 5, "tid": 5, "ts": 1.5, "dur": 2.25, **others}


def write(path: Path, events: list[dict[str, object]], **metadata: object) -> Path:
    document = {"schemaVersion": 1, **metadata, "traceEvents": events, "traceName": "t"}
    path.write_text(json.dumps(document, indent=2))
    return path


def mark(name: str, began_ns: int, ended_ns: int, thread: int = 7) -> Mark:
    return name, BASE_NS + began_ns, BASE_NS + ended_ns, thread


STEP = event("ProfilerStep#4", args={"External id": 3})


def test_a_mark_is_an_event_as_torch_writes_them_with_its_thread_and_times_from_the_base(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", [event("before", args={}), STEP], baseTimeNanoseconds=BASE_NS)
    assert add_marks(str(path), [mark('in "quotes" \\ {', 2_000, 3_001), mark("around", 1_234_567, 9_999_999, 8)])
    events = json.loads(path.read_text())["traceEvents"]
    assert events[:2] == [event("before", args={}), STEP]
    assert events[2:] == [
        event('in "quotes" \\ {', tid=7, ts=2.0, dur=1.001, args={}),
        event("around", tid=8, ts=1234.567, dur=8765.432, args={}),
    ]


def test_times_of_an_older_torch_have_no_base(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", [event("before", args={}), STEP])
    assert add_marks(str(path), [("m", 1_790_000_000_000_000_500, 1_790_000_000_000_001_500, 5)])
    assert '"ts": 1790000000000000.500' in path.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[1, 2]",
        '{"traceEvents": [], "traceName": "t"}',
        json.dumps({"traceEvents": [event("no step", args={})], "traceName": "t"}),
        json.dumps({"traceEvents": [STEP], "unknown": 1}),
    ],
)
def test_a_trace_of_an_unknown_form_stays_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    assert not add_marks(str(path), [mark("m", 0, 1)])
    assert path.read_text() == text


def test_nothing_is_opened_where_nothing_was_marked(tmp_path: Path) -> None:
    assert add_marks(str(tmp_path / "missing"), [])


def test_readers_scan_a_trace_with_marks_as_one_without(tmp_path: Path) -> None:
    """What torch of this environment writes: its layout is the same before and behind, and holds for every mark."""
    steps = torch.profiler.schedule(wait=0, warmup=1, active=10)
    with profile(activities=[ProfilerActivity.CPU], schedule=steps) as profiler:
        for _ in range(4):
            torch.ones(3).sum()
            profiler.step()
    plain, marked = tmp_path / "plain.json", tmp_path / "marked.json"
    profiler.export_chrome_trace(str(plain))
    shutil.copy(plain, marked)
    base_ns = json.loads(plain.read_text())["baseTimeNanoseconds"]
    number = 300
    assert add_marks(str(marked), [(f"nn.Module: m{n}", base_ns + n, base_ns + 2 * n + 1, 1) for n in range(number)])
    layouts = [find_layout(text, start_of_events(text) or 0) for text in (plain.read_bytes(), marked.read_bytes())]
    assert layouts[0] is not None
    assert layouts[0] == layouts[1]
    assert marked.read_bytes().count(layouts[0].separator) == plain.read_bytes().count(layouts[0].separator) + number
    assert (
        len(re.findall(re.escape(layouts[0].prefix + layouts[0].key) + b"user_annotation", marked.read_bytes()))
        > number
    )
    trace = read_trace(str(marked), Events.ANNOTATIONS)
    assert len(trace.annotated("nn.Module: m")) == number
    assert trace.annotations.end_ns.max() - base_ns <= 2 * number
