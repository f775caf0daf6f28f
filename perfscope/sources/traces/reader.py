"""Reads one trace of torch.profiler, plain or gzip, whole or damaged, as a Trace.

A trace in one of the layouts that exporters write is scanned block by block while it is inflated: what is kept is the
wanted events alone. Whatever does not fit is parsed as a whole, and what cannot be parsed is salvaged event by event.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import msgspec

from perfscope.errors import NotATrace, SourceError
from perfscope.sources.traces.ahead import Pace, paced
from perfscope.sources.traces.columns import Columns, TimesDoNotFit
from perfscope.sources.traces.files import is_url
from perfscope.sources.traces.inflate import keep_freed_memory, read_blocks
from perfscope.sources.traces.layout import find_layout, start_of_events, times_fit_doubles
from perfscope.sources.traces.products import ProductFinder
from perfscope.sources.traces.records import (
    AnyEvent,
    Device,
    DistributedInfo,
    Event,
    EventInDigits,
    HostEvent,
    OurMetadata,
)
from perfscope.sources.traces.salvage import FAILURES, decode_last, decode_one, mend, salvage
from perfscope.sources.traces.scan import DoesNotFit, Scanner
from perfscope.tables.products import Products
from perfscope.tables.trace import ALL_EVENTS, Events, ProcessGroup, Trace
from perfscope.wire import TRACE_METADATA

#: How the rank of a trace that does not tell it is found: its number, or a pattern that finds it in the path.
RankRule: TypeAlias = "int | re.Pattern[str]"
RANK_IN_FILE_NAME = re.compile(r"rank[_\-.]?(\d+)[^/]*$", re.IGNORECASE)
_HEAD_BYTES = 1 << 20
_LONGEST_SPACE = 4096
_LARGEST_HEAD_BYTES = 16 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
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
    """What a file holds: its events as columns, what it says of itself, and what is wrong with it."""

    columns: Columns
    document: _Document
    damage: tuple[str, ...]
    products: Products | None = None


def read_trace(
    path: str | os.PathLike[str],
    events: Events = ALL_EVENTS,
    ranks: RankRule = RANK_IN_FILE_NAME,
    pace: Pace = Pace.AHEAD,
) -> Trace:
    """Read a trace; only the kinds of events that are asked for are decoded.

    What comes over a network is always read ahead.

    Raises:
        SourceError: The file cannot be opened, is empty, or is no trace.
    """
    location = os.fspath(path)
    try:
        content = _scan(location, events, Pace.AHEAD if is_url(location) else pace)
    except (DoesNotFit, TimesDoNotFit):
        content = _parse(location, events)
    return _to_trace(location, content, ranks)


def _scan(path: str, events: Events, pace: Pace) -> _Content:
    """Find the wanted events block by block.

    Raises:
        DoesNotFit: The layout is unknown, or not kept.
        TimesDoNotFit: A time is too large for a double, which the first one was not.
    """
    damage: list[str] = []
    keep_freed_memory()
    with paced(read_blocks(path, damage), pace) as blocks:
        head = _read_head(blocks)
        start = start_of_events(head)
        layout = None if start is None else find_layout(head, start)
        if start is None or layout is None:
            raise DoesNotFit
        first = head.index(b"{", start)
        finder = ProductFinder() if Events.PRODUCTS in events else None
        scanner = Scanner(layout, events, finder)
        columns = Columns(events)
        fits = times_fit_doubles(head, start)
        of_device = _Decoding(path, Event if fits else EventInDigits, layout.is_unambiguous)
        of_host = _Decoding(path, HostEvent if fits else EventInDigits, layout.is_unambiguous)
        for found in scanner.scan(chain((head[first:],), blocks)):
            columns.add(of_device.decode(found.device))
            columns.add(of_host.decode(found.host))
    if finder:
        finder.look_at_last(scanner.rest)
    last, tail, is_closed = decode_last(scanner.rest, of_device.decode_one)
    if tail and not is_closed:
        raise DoesNotFit
    if last is not None and not layout.is_unambiguous and _has_no_time(last):
        raise DoesNotFit
    columns.add([last] if last is not None else ())
    if not is_closed:
        count = scanner.events + (last is not None)
        damage.append(f"{path}: is cut off after {count} events; what was not written is lost")
    damage.extend(of_device.damage())
    damage.extend(of_host.damage())
    products = finder.products() if finder else None
    return _Content(columns, _document_around(head[:start], tail), tuple(damage), products)


def _read_head(blocks: Iterator[bytes]) -> bytes:
    """The first blocks, until the events have begun and there are enough of them to tell the layout."""
    head = b""
    for block in blocks:
        head = head + block if head else block
        start = start_of_events(head)
        if len(head) > _LARGEST_HEAD_BYTES or (start is not None and len(head) - start > _HEAD_BYTES):
            break
    return head


@dataclass(slots=True)
class _Decoding:
    """Decodes blocks of events, and one by one what fails as a block."""

    path: str
    kind: Any
    is_unambiguous: bool
    lost: int = 0

    def decode(self, pieces: Sequence[bytes]) -> list[Any]:
        """The events of a block.

        Raises:
            DoesNotFit: An event cannot be read, and may have been cut where it does not end.
        """
        if not pieces:
            return []
        try:
            events: list[Any] = _decoder(list[self.kind])(b"[%b]" % b",".join(pieces))  # type: ignore[name-defined]
        except FAILURES:
            return [event for piece in pieces if (event := self.decode_or_count(piece)) is not None]
        if not self.is_unambiguous and any(_has_no_time(event) for event in events):
            raise DoesNotFit
        return events

    def decode_one(self, piece: bytes) -> Any:  # noqa: ANN401 - one of the events' types
        """One event, or an exception of the decoder."""
        return _decoder(self.kind)(piece)

    def decode_or_count(self, piece: bytes) -> Any:  # noqa: ANN401 - as above
        """One event, mended where it must be; None, and counted, where that is no use."""
        event, _ = decode_one(piece, self.decode_one)
        if event is None and not self.is_unambiguous:
            raise DoesNotFit
        self.lost += event is None
        return event

    def damage(self) -> list[str]:
        """What was lost, in words."""
        return [f"{self.path}: {self.lost} of its events cannot be read and are left out"] if self.lost else []


def _has_no_time(event: AnyEvent) -> bool:
    return event.ts is None or (isinstance(event.ts, msgspec.Raw) and bytes(event.ts) == b"null")


def _decoder(kind: Any) -> Callable[[bytes], Any]:  # noqa: ANN401 - a type
    return msgspec.json.Decoder(kind, strict=False).decode


def _parse(path: str, events: Events) -> _Content:
    """Read the whole file, whatever its layout."""
    damage: list[str] = []
    text = b"".join(read_blocks(path, damage)).removeprefix(_BYTE_ORDER_MARK)
    if not text.strip():
        raise SourceError(path, "is empty", hint=damage[0] if damage else None)
    for kind in (Event, EventInDigits):
        try:
            return _parse_whole(text, kind, events, damage)
        except TimesDoNotFit:
            continue
        except FAILURES:
            return _parse_damaged(path, text, events, damage)
    raise AssertionError("times in digits always fit")


def _products_of(events: bytes) -> Products | None:
    """The products among events of whatever layout; absent where they cannot be read."""
    finder = ProductFinder()
    try:
        finder.look_at_events(events)
    except FAILURES:
        return None
    return finder.products()


def _parse_whole(text: bytes, kind: Any, events: Events, damage: list[str]) -> _Content:  # noqa: ANN401 - a type
    columns = Columns(events)
    if text.lstrip()[:1] == b"[":
        document = _Document(events=msgspec.Raw(text))
    else:
        document = msgspec.json.decode(text, type=_Document)
    if not document.events:
        raise msgspec.ValidationError("no events")
    columns.add(_decoder(list[kind])(document.events))
    products = _products_of(bytes(document.events)) if Events.PRODUCTS in events else None
    return _Content(columns, document, tuple(damage), products)


def _parse_damaged(path: str, text: bytes, events: Events, damage: list[str]) -> _Content:
    start = start_of_events(text)
    if start is None:
        raise NotATrace(path, "is no trace", hint="a trace of torch.profiler is JSON with the key traceEvents")
    kind = Event if times_fit_doubles(text, start) else EventInDigits
    found = salvage(text, start - 1, _decoder(kind))
    holds_something_else = text[start : start + _LONGEST_SPACE].lstrip()[:1] not in (b"", b"{", b"]")
    if not found.events and (holds_something_else or b'"traceEvents"' not in text):
        raise NotATrace(path, "is no trace", hint="it holds no event of torch.profiler")
    columns = Columns(events)
    columns.add(found.events)
    if not found.is_closed:
        damage.append(f"{path}: is cut off after {len(found.events)} events; what was not written is lost")
    lost = found.lost - (0 if found.is_closed or not found.lost else 1)
    if lost > 0:
        damage.append(f"{path}: {lost} of its events cannot be read and are left out")
    return _Content(columns, _document_around(text[:start], b"]}"), tuple(damage))


def _document_around(head: bytes, tail: bytes) -> _Document:
    """What a file says of itself before and after its events, or before them where what follows is not whole."""
    head = head.removeprefix(_BYTE_ORDER_MARK)
    for end in (tail, b"]}"):
        for candidate in (head + end, mend(head + end)):
            try:
                return msgspec.json.decode(candidate, type=_Document)
            except FAILURES:
                continue
    return _Document()


def _to_trace(path: str, content: _Content, ranks: RankRule) -> Trace:
    columns, document = content.columns, content.document
    info = _metadata(document.distributed, DistributedInfo, DistributedInfo())
    ours = _metadata(document.ours, OurMetadata, OurMetadata())
    devices: list[Device] = _metadata(document.devices, list[Device], [])
    dropped = [
        f"{path}: {count} events have {what} and are left out" for what, count in columns.dropped.items() if count
    ]
    return Trace(
        path=path,
        rank=_first(info.rank, ours.rank, _rank_outside(path, ranks)),
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
        names=tuple(columns.names),
        products=content.products,
        damage=(*content.damage, *dropped),
    )


def _metadata(raw: msgspec.Raw, kind: Any, default: _T) -> _T:  # noqa: ANN401 - a type or a generic alias
    if not raw:
        return default
    try:
        value: _T = msgspec.json.decode(raw, type=kind, strict=False)
    except FAILURES:
        return default
    return value


def _first(*candidates: int | None) -> int | None:
    return next((value for value in candidates if value is not None and value >= 0), None)


def _rank_outside(path: str, ranks: RankRule) -> int | None:
    if isinstance(ranks, int):
        return ranks
    match = ranks.search(path)
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
