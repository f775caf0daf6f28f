"""What perfscope reads is what parsing the whole file with the json module gives, however the file is written."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.sources.traces import inflate
from perfscope.sources.traces import reader as trace
from perfscope.sources.traces.files import RANK_IN_FILE_NAME
from perfscope.sources.traces.reader import read_trace
from perfscope.sources.traces.records import KIND
from perfscope.sources.traces.scan import _STARTS
from perfscope.tables.trace import ALL_EVENTS, Events, Trace
from tests.conftest import ROOT
from tests.sources.traces import slow_parse
from tests.sources.traces.making import (
    LAYOUTS,
    Event,
    call,
    compact,
    copy,
    distributed,
    document,
    in_microseconds,
    indented,
    kernel,
    kineto,
    span,
    step,
    write,
)

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


TRACES = ROOT / "fixtures" / "traces"
Layout = Callable[[Mapping[str, Any]], str]


def parsed(path: Path) -> Trace:
    """What parsing the whole file gives."""
    return trace._to_trace(str(path), trace._parse(str(path), ALL_EVENTS), RANK_IN_FILE_NAME)


def scanned(path: Path) -> Trace:
    """What scanning gives; an error where the layout does not fit."""
    return trace._to_trace(str(path), trace._scan(str(path), ALL_EVENTS), RANK_IN_FILE_NAME)


def tables(one: Trace) -> dict[str, list[tuple[Any, ...]]]:
    """Every table as tables with names spelled out, in an order of their own."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for name in ("device", "calls", "annotations", "operators"):
        table = getattr(one, name)
        columns = [getattr(table, column).tolist() for column in table.__struct_fields__ if column != "name"]
        texts = [one.names[index] for index in table.name]
        if name == "device":
            said = [one.collectives[index] if index >= 0 else None for index in table.collective]
            columns[-1] = [str(each) for each in said]
        found[name] = sorted(zip(texts, *columns, strict=True))
    return found


def same(one: Trace, other: Trace) -> bool:
    facts = ("rank", "world_size", "host", "backend", "devices", "base_ns", "groups", "damage")
    return tables(one) == tables(other) and all(getattr(one, fact) == getattr(other, fact) for fact in facts)


@pytest.mark.parametrize("path", sorted(TRACES.rglob("*.json.gz")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_real_traces_are_scanned_and_lose_nothing(path: Path) -> None:
    assert same(scanned(path), parsed(path))


def test_traces_are_scanned_piece_by_piece_wherever_the_pieces_end(monkeypatch: pytest.MonkeyPatch) -> None:
    path = TRACES / "gloo2" / "rank0.pt.trace.json.gz"
    whole = parsed(path)
    monkeypatch.setattr(trace, "_HEAD_BYTES", 3000)
    for size in (997, 4096, 65537):
        monkeypatch.setattr(inflate, "READ_BYTES", size)
        assert same(scanned(path), whole)


names = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=12) | st.sampled_from(
    [
        '"cat": "kernel"',
        '"cat":"kernel"',
        '},{"ph":"X","cat":"kernel"',
        "\n  },\n  {\n",
        "\\",
        '\\"',
        "{",
        "}}",
        "]",
        "é中",
    ]
)
moments = st.integers(0, 10**6)


@st.composite
def anything(draw: st.DrawFn) -> Event:
    start = draw(moments)
    name = draw(names)
    launch = draw(st.integers(0, 50))
    arguments: dict[str, Any] = {"External id": draw(st.integers(0, 99))}
    if draw(st.booleans()):
        arguments["note"] = draw(names)
    if draw(st.booleans()):
        arguments["nested"] = [{"ph": "X", "cat": "kernel"}, {"a": [1, {"b": "}"}]}]
    kinds: list[Event] = [
        kernel(name, start, start + 5, launch=launch, **arguments),
        copy(name, start, start + 5, bytes=7),
        call(name, start, start + 5, launch=launch),
        *(
            span(category, name, start, start + 5, args=arguments)
            for category in ("user_annotation", "cpu_op", "python_function", "gpu_user_annotation")
        ),
        {"ph": "s", "id": 5, "pid": 1, "tid": 7, "ts": start, "cat": "ac2g", "name": name},
        {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": name, "pid": 1, "tid": 1, "ts": start},
        {"name": "process_name", "ph": "M", "ts": start, "pid": 1, "tid": 0, "args": {"name": name}},
    ]
    return draw(st.sampled_from(kinds))


def identity(event: Event) -> tuple[Any, ...]:
    """What an event that is there twice would share with itself."""
    return event["name"], event.get("cat"), event["ts"], event.get("args", {}).get("correlation")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=st.lists(anything(), max_size=12, unique_by=identity), layout=st.sampled_from(LAYOUTS))
def test_whatever_stands_between_them_the_same_events_are_found(
    folder: Path, events: list[Event], layout: Layout
) -> None:
    path = write(folder / "rank0.json", [step(1, 0, 10), *events], layout, **distributed(0))
    truth = parsed(path)
    assert truth.damage == ()
    assert same(read_trace(path), truth)
    content = json.loads(path.read_bytes())
    kernels = [event for event in content["traceEvents"] if event.get("ph") == "X" and event.get("cat") == "kernel"]
    copies = [event for event in content["traceEvents"] if event.get("cat") == "gpu_memcpy"]
    assert sorted(truth.names[name] for name in truth.device.name) == sorted(
        event["name"] for event in [*kernels, *copies]
    )


def test_an_event_in_another_layout_is_not_missed(tmp_path: Path) -> None:
    """A tool that adds its own events writes them in its own way."""
    text = in_microseconds(kineto(document([kernel(f"k{n}", 10 * n, 10 * n + 5) for n in range(5)])))
    added = '  {"name": "added", "cat": "kernel", "ph": "X", "ts": 1.0, "dur": 0.005, "pid": 0, "tid": 7},\n'
    second = text.index('  {\n    "ph": "X"', text.index('"k1"'))
    path = tmp_path / "trace.json"
    path.write_text(text[:second] + added + text[second:])
    assert len(read_trace(path).device) == 6
    path.write_text(
        text.replace('"cat": "kernel", "name": "k1"', '"cat": "overhead", "name": "k1"').replace(
            '  {\n    "ph": "X", "cat": "kernel", "name": "k2"',
            added + '  {\n    "ph": "X", "cat": "kernel", "name": "k2"',
        )
    )
    assert len(read_trace(path).device) == 5


def test_metadata_may_come_after_the_events(tmp_path: Path) -> None:
    content = document([kernel(f"k{n}", 10 * n, 10 * n + 5) for n in range(4)])
    content.update(distributed(3, 8), baseTimeNanoseconds=5)
    path = tmp_path / "trace.json"
    path.write_text(in_microseconds(compact(content)))
    found = read_trace(path)
    assert (found.rank, found.world_size, found.base_ns, len(found.device)) == (3, 8, 5, 4)


def test_the_first_letters_of_a_category_tell_its_kind() -> None:
    kinds: dict[bytes, set[Events | None]] = {}
    for name, letters in _STARTS.items():
        kinds.setdefault(letters, set()).add(KIND.get(name))
    assert all(len(kind) == 1 for kind in kinds.values())
