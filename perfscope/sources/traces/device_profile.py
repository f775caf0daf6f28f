"""What profilers other than torch.profiler recorded, as a Trace: work of devices, its launches, steps and operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, DeviceEvents, HostSpans, Trace, Work


class ProfiledEvent(NamedTuple):
    """An event: where it ran (a stream or a thread), its name, its times and its correlation."""

    line: int
    name: str
    start_ns: int
    duration_ns: int
    correlation: int


@dataclass(slots=True)
class Profile:
    """What a profile contains.

    Attributes:
        device: Events of devices, by the index of the device, and what they do.
        calls: Calls of the host that launch something; the line is the thread.
        annotations: Ranges that code marked, steps among them.
        operators: Operators of the framework.
        host: The machine; ``""`` where it is not stated.
        damage: What is lost, as sentences.
    """

    device: dict[int, list[tuple[ProfiledEvent, Work]]] = field(default_factory=dict)
    calls: list[ProfiledEvent] = field(default_factory=list)
    annotations: list[ProfiledEvent] = field(default_factory=list)
    operators: list[ProfiledEvent] = field(default_factory=list)
    host: str = ""
    damage: list[str] = field(default_factory=list)


def to_trace(path: str, profile: Profile, exporter: str, rank: int | None = None) -> Trace:
    """A trace of a profile that has events of devices.

    Its clock begins with its first event.
    """
    events = [(device, *pair) for device, members in sorted(profile.device.items()) for pair in members]
    events.sort(key=lambda row: row[1].start_ns)
    of_host = [sorted(spans, key=_start_ns) for spans in (profile.calls, profile.annotations, profile.operators)]
    first_ns = min(event.start_ns for event in (events[0][1], *(spans[0] for spans in of_host if spans)))
    names: dict[str, int] = {}
    columns = _columns([event for _, event, _ in events], names, first_ns)
    calls, annotations, operators = (_spans(_columns(spans, names, first_ns)) for spans in of_host)
    absent = np.full(len(events), ABSENT, np.int64)
    return Trace(
        path=path,
        rank=rank,
        world_size=None,
        host=profile.host,
        backend="",
        devices=(),
        base_ns=first_ns,
        names=tuple(names),
        device=DeviceEvents(
            name=columns["name"].astype(np.int32),
            work=np.array([work for *_, work in events], np.int8),
            start_ns=columns["start_ns"],
            duration_ns=columns["duration_ns"],
            device=np.array([device for device, *_ in events], np.int64),
            stream=columns["line"],
            correlation=columns["correlation"],
            external_id=absent,
            bytes=absent,
            collective=absent,
            grid=absent,
        ),
        calls=calls,
        annotations=annotations,
        operators=operators,
        exporter=exporter,
        damage=tuple(profile.damage),
    )


def _start_ns(event: ProfiledEvent) -> int:
    return event.start_ns


def _columns(events: Sequence[ProfiledEvent], names: dict[str, int], first_ns: int) -> dict[str, Int64]:
    return {
        "name": np.array([names.setdefault(event.name, len(names)) for event in events], np.int64),
        "start_ns": np.array([event.start_ns - first_ns for event in events], np.int64),
        "duration_ns": np.array([event.duration_ns for event in events], np.int64),
        "line": np.array([event.line for event in events], np.int64),
        "correlation": np.array([event.correlation for event in events], np.int64),
    }


def _spans(columns: Mapping[str, Int64]) -> HostSpans:
    count = len(columns["line"])
    return HostSpans(
        name=columns["name"].astype(np.int32),
        start_ns=columns["start_ns"],
        duration_ns=columns["duration_ns"],
        process=np.zeros(count, np.int64),
        thread=columns["line"],
        correlation=columns["correlation"],
        external_id=np.full(count, ABSENT, np.int64),
    )
