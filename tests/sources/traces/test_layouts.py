"""Scanning for the wanted events gives what parsing everything gives, whatever stands between them."""

from __future__ import annotations

import json
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
from perfscope.tables.trace import ALL_EVENTS, Trace
from tests.conftest import ROOT
from tests.sources.traces.making import (
    LAYOUTS,
    Event,
    call,
    compact,
    copy,
    distributed,
    document,
    in_microseconds,
    kernel,
    kineto,
    span,
    step,
    write,
)

FIXTURES = ROOT / "fixtures" / "traces"
Layout = Callable[[Mapping[str, Any]], str]


def parsed(path: Path) -> Trace:
    """What parsing the whole file gives."""
    return trace._to_trace(str(path), trace._parse(str(path), ALL_EVENTS), RANK_IN_FILE_NAME)


def scanned(path: Path) -> Trace:
    """What scanning gives; an error where the layout does not fit."""
    return trace._to_trace(str(path), trace._scan(str(path), ALL_EVENTS), RANK_IN_FILE_NAME)


def rows(one: Trace) -> dict[str, list[tuple[Any, ...]]]:
    """Every table as rows with names spelled out, in an order of their own."""
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
    return rows(one) == rows(other) and all(getattr(one, fact) == getattr(other, fact) for fact in facts)


@pytest.mark.parametrize(
    "path", sorted(FIXTURES.rglob("*.json.gz")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_real_traces_are_scanned_and_lose_nothing(path: Path) -> None:
    assert same(scanned(path), parsed(path))


def test_traces_are_scanned_piece_by_piece_wherever_the_pieces_end(monkeypatch: pytest.MonkeyPatch) -> None:
    path = FIXTURES / "gloo2" / "rank0.pt.trace.json.gz"
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
