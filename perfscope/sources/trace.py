"""Reads one trace of torch.profiler, plain or gzip, whole or damaged, as a Trace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from perfscope.errors import NotATrace, SourceError
from perfscope.sources.inflate import read_blocks
from perfscope.sources.kineto import (
    Columns,
    Device,
    DistributedInfo,
    Event,
    EventInDigits,
    OurMetadata,
    TimesDoNotFit,
)
from perfscope.sources.salvage import mend, salvage
from perfscope.tables.trace import ALL_EVENTS, Events, ProcessGroup, Trace
from perfscope.wire import TRACE_METADATA

_RANK_IN_NAME = re.compile(r"rank[_\-.]?(\d+)", re.IGNORECASE)
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FAILURES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_T = TypeVar("_T")
_ABSENT = msgspec.Raw(b"")


class _Document(msgspec.Struct, rename={
    "events": "traceEvents", "distributed": "distributedInfo", "devices": "deviceProperties",
    "base_ns": "baseTimeNanoseconds", "ours": TRACE_METADATA, "host": "host_name",
}):  # fmt: skip
    """A trace file; what it says of itself is decoded apart, so that a surprise there costs no event."""

    events: msgspec.Raw = _ABSENT
    distributed: msgspec.Raw = _ABSENT
    devices: msgspec.Raw = _ABSENT
    base_ns: msgspec.Raw = _ABSENT
    ours: msgspec.Raw = _ABSENT
    host: msgspec.Raw = _ABSENT


@dataclass(frozen=True, slots=True)
class _Content:
    """What a file holds: its events as columns, and what it says of itself."""

    columns: Columns
    document: _Document


def read_trace(path: Path, events: Events = ALL_EVENTS) -> Trace:
    """Read a trace; only the kinds of events that are asked for are decoded.

    Raises:
        SourceError: The file cannot be opened, is empty, or is no trace.
    """
    damage: list[str] = []
    text = b"".join(read_blocks(path, damage))
    if not text.strip():
        raise SourceError(path, "is empty", hint=damage[0] if damage else None)
    content = _read(path, text, events, damage)
    return _to_trace(path, content, damage)


def _read(path: Path, text: bytes, events: Events, damage: list[str]) -> _Content:
    for kind in (Event, EventInDigits):
        try:
            try:
                return _read_whole(text, kind, events)
            except _FAILURES:
                return _read_damaged(path, text, kind, events, damage)
        except TimesDoNotFit:
            continue
    raise AssertionError("times in digits always fit")


def _read_whole(text: bytes, kind: Any, events: Events) -> _Content:  # noqa: ANN401 - a type
    columns = Columns(events)
    if text.lstrip()[:1] == b"[":
        document = _Document(events=msgspec.Raw(text))
    else:
        document = msgspec.json.decode(text, type=_Document)
    if not document.events:
        raise msgspec.ValidationError("no events")
    columns.add(msgspec.json.decode(document.events, type=list[kind], strict=False))
    return _Content(columns, document)


def _read_damaged(path: Path, text: bytes, kind: type[Any], events: Events, damage: list[str]) -> _Content:
    key = _EVENTS_KEY.search(text)
    if key is None and text.lstrip()[:1] != b"[":
        raise NotATrace(path, "is no trace", hint="a trace of torch.profiler is JSON with the key traceEvents")
    decoder = msgspec.json.Decoder(kind, strict=False)
    found = salvage(text, key.end() - 1 if key else 0, decoder.decode)
    if not found.events and key is None:
        raise NotATrace(path, "is no trace", hint="it holds no event of torch.profiler")
    columns = Columns(events)
    columns.add(found.events)
    if not found.is_closed:
        damage.append(f"{path}: is cut off after {len(found.events)} whole events; what was not written is lost")
    lost = found.lost - (0 if found.is_closed or not found.lost else 1)
    if lost > 0:
        damage.append(
            f"{path}: {lost} of its events cannot be read and are left out, the first at byte {found.first_lost}"
        )
    return _Content(columns, _document_around(text, key.start() if key else 0))


def _document_around(text: bytes, end_of_head: int) -> _Document:
    """What a damaged file says of itself before its events."""
    head = text[:end_of_head].rstrip().rstrip(b",") + b"}"
    for candidate in (head, mend(head)):
        try:
            return msgspec.json.decode(candidate, type=_Document)
        except _FAILURES:
            continue
    return _Document()


def _to_trace(path: Path, content: _Content, damage: list[str]) -> Trace:
    columns, document = content.columns, content.document
    info = _metadata(document.distributed, DistributedInfo, DistributedInfo())
    ours = _metadata(document.ours, OurMetadata, OurMetadata())
    devices: list[Device] = _metadata(document.devices, list[Device], [])
    damage.extend(
        f"{path}: {count} events have {what} and are left out" for what, count in columns.dropped.items() if count
    )
    return Trace(
        path=str(path),
        rank=_first(info.rank, ours.rank, _rank_in_name(path)),
        world_size=_first(info.world_size, ours.world_size),
        host=_metadata(document.host, str, ""),
        backend=info.backend,
        devices=tuple(device.name for device in sorted(devices, key=lambda device: device.id)),
        base_ns=_metadata(document.base_ns, int, 0),
        device=columns.device_events(),
        calls=columns.host_spans(Events.CALLS),
        annotations=columns.host_spans(Events.ANNOTATIONS),
        operators=columns.host_spans(Events.OPERATORS),
        groups=_groups(info, columns),
        collectives=tuple(columns.collectives),
        names=tuple(columns.codes),
        damage=tuple(damage),
        backward=columns.host_spans(Events.BACKWARD),
    )


def _metadata(raw: msgspec.Raw, kind: Any, default: _T) -> _T:  # noqa: ANN401 - a type or a generic alias
    if not raw:
        return default
    try:
        value: _T = msgspec.json.decode(raw, type=kind, strict=False)
    except _FAILURES:
        return default
    return value


def _first(*candidates: int | None) -> int | None:
    return next((value for value in candidates if value is not None and value >= 0), None)


def _rank_in_name(path: Path) -> int | None:
    match = _RANK_IN_NAME.search(path.name)
    return int(match[1]) if match else None


def _groups(info: DistributedInfo, columns: Columns) -> dict[str, ProcessGroup]:
    groups = {
        group.pg_name: ProcessGroup(group.pg_name, group.pg_desc, group.pg_size, tuple(group.ranks))
        for group in info.pg_config
    }
    for name, (description, ranks, size) in columns.groups.items():
        if name and (name not in groups or groups[name].description in ("", "undefined")):
            known = groups[name].ranks if name in groups else ()
            members = known or tuple(int(text) for text in re.findall(r"\d+", ranks) if "..." not in ranks)
            groups[name] = ProcessGroup(name, description, size or len(members), members)
    return groups
