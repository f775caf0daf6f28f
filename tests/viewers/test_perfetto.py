"""Traces keep the rules by which Perfetto imports JSON, so that it drops nothing.

Perfetto's own importer is a program that its Python package downloads, so it is not run here. Its rules are those of
the Trace Event Format: known phases, a number as time, a length that is not negative, names for tracks, and complete
events of one thread that lie within each other or apart: of two that overlap otherwise it drops the second.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.viewers.conftest import H200

_PHASES = set("XBEiICsftMbenNODPpvR")
#: Kineto writes nanoseconds as decimals of microseconds; two events may share their last one.
_NANOSECOND = 0.0011


def breaches(document: Any) -> list[str]:
    """What of a document breaks the rules."""
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        return ["no traceEvents"]
    events = document["traceEvents"]
    found = [text for event in events for text in _breaches_of_one(event)]
    tracks: dict[tuple[Any, Any], list[tuple[float, float, str]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and not found:
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for track, slices in tracks.items():
        found += [f"{track}: {text}" for text in _overlaps(slices)]
    return found


def _breaches_of_one(event: dict[str, Any]) -> list[str]:
    phase = event.get("ph")
    if phase not in _PHASES:
        return [f"phase {phase!r}"]
    found = []
    if not isinstance(event.get("name"), str):
        found.append(f"no name: {event}")
    if phase != "M" and not _is_number(event.get("ts")):
        found.append(f"no time: {event}")
    if not all(isinstance(event.get(key), int | str) for key in ("pid", "tid")):
        found.append(f"no track: {event}")
    if phase == "X" and not (_is_number(event.get("dur")) and event["dur"] >= 0):
        found.append(f"no length: {event}")
    if phase in "stf" and "id" not in event:
        found.append(f"an arrow without an id: {event}")
    if phase == "M" and not isinstance(event.get("args"), dict):
        found.append(f"metadata without a value: {event}")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _overlaps(slices: Iterable[tuple[float, float, str]]) -> list[str]:
    found = []
    open_ends: list[tuple[float, str]] = []
    for start, end, name in sorted(slices, key=lambda one: (one[0], -one[1])):
        while open_ends and open_ends[-1][0] <= start + _NANOSECOND:
            open_ends.pop()
        if open_ends and end > open_ends[-1][0] + _NANOSECOND:
            found.append(f"{name} at {start} overlaps {open_ends[-1][1]}")
            continue
        open_ends.append((end, name))
    return found


def read(trace: Path) -> Any:
    return json.loads(gzip.decompress(trace.read_bytes()))


@pytest.mark.parametrize("trace", sorted(H200.iterdir()), ids=lambda path: path.name.split(".")[0])
def test_traces_of_gpus_keep_every_rule(trace: Path) -> None:
    document = read(trace)
    assert breaches(document) == []
    arrows = [(event["ph"], event["id"]) for event in document["traceEvents"] if event.get("cat") == "fwdbwd"]
    assert {one for phase, one in arrows if phase == "s"} == {one for phase, one in arrows if phase == "f"}
