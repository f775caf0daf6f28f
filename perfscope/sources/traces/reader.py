"""Reads one trace of torch.profiler, plain or gzip, whole or damaged, as a Trace.

A trace in one of the layouts that exporters write is scanned block by block while it is inflated: only the requested
events are kept. Any other trace is parsed as a whole, and one that cannot be parsed is salvaged event by event.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias, TypeVar

import msgspec

from perfscope.constants import MIB
from perfscope.errors import NotATrace, SourceError
from perfscope.sources.stores.location import is_url
from perfscope.sources.traces.ahead import Pace, paced
from perfscope.sources.traces.annotated_calls import name_exchanges
from perfscope.sources.traces.ascend import is_of_ascend, read_ascend
from perfscope.sources.traces.columns import Columns, TimesDoNotFit
from perfscope.sources.traces.decoding import EventDecoder, OddEvents, decode_last, has_no_time
from perfscope.sources.traces.inflate import keep_freed_memory, read_blocks
from perfscope.sources.traces.jax import XPLANE, is_export, read_export, read_xplane
from perfscope.sources.traces.layout import Layout, find_layout, start_of_events, times_fit_doubles
from perfscope.sources.traces.operator_times import OperatorTimes
from perfscope.sources.traces.other_tools import refuse_other_tools
from perfscope.sources.traces.products import ProductFinder
from perfscope.sources.traces.records import (
    AnyEvent,
    Device,
    DeviceEvent,
    DistributedInfo,
    Event,
    EventInDigits,
    HostEvent,
    ShapedEvent,
)
from perfscope.sources.traces.salvage import FAILURES, repair
from perfscope.sources.traces.scan import DoesNotFit, Scanner
from perfscope.sources.traces.step_marks import mark_steps
from perfscope.sources.traces.stream import EventStream
from perfscope.tables.products import Products
from perfscope.tables.trace import ALL_EVENTS, Events, ProcessGroup, Trace
from perfscope.wire import LIGHT, TRACE_METADATA
from perfscope.wire.traces import MERGED_MARK, TraceMetadata

#: How the rank of a trace that does not state it is found: the number, or a pattern that finds it in the path.
RankRule: TypeAlias = "int | re.Pattern[str]"
RANK_IN_FILE_NAME = re.compile(r"rank[_\-.]?(\d+)[^/]*$", re.IGNORECASE)
_HEAD_BYTES = MIB
_LONGEST_SPACE = 4096
_LARGEST_MENDED_BYTES = MIB
_LARGEST_HEAD_BYTES = 16 * MIB
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_T = TypeVar("_T")
_Plain = TypeVar("_Plain", Event, HostEvent)
_ABSENT = msgspec.Raw(b"")


class _Document(msgspec.Struct, rename={
    "events": "traceEvents", "distributed": "distributedInfo", "devices": "deviceProperties",
    "base_ns": "baseTimeNanoseconds", "hooks": TRACE_METADATA, "host": "host_name",
}):  # fmt: skip
    """A trace file; its metadata are decoded apart, so that an error in them costs no event."""

    events: msgspec.Raw = _ABSENT
    distributed: msgspec.Raw = _ABSENT
    devices: msgspec.Raw = _ABSENT
    base_ns: msgspec.Raw = _ABSENT
    hooks: msgspec.Raw = _ABSENT
    host: msgspec.Raw = _ABSENT


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of a file: its events as columns, its metadata, and its damage."""

    columns: Columns
    document: _Document
    damage: tuple[str, ...]
    products: Products | None = None


def read_trace(
    path: str | os.PathLike[str],
    events: Events = ALL_EVENTS,
    rank_rule: RankRule = RANK_IN_FILE_NAME,
    pace: Pace = Pace.AHEAD,
) -> Trace:
    """Read a trace; only the requested kinds of events are decoded.

    A URL is always read ahead.

    Raises:
        SourceError: The file cannot be opened, is empty, or is not a trace.
    """
    location = os.fspath(path)
    if XPLANE in location:
        return read_xplane(location)
    try:
        content = _scan(location, events, Pace.AHEAD if is_url(location) else pace)
    except (DoesNotFit, TimesDoNotFit):
        content = _parse(location, events)
    trace = _to_trace(location, content, rank_rule)
    if len(trace.device):
        return trace
    if not (len(trace.calls) or len(trace.annotations)) and is_export(location):
        return read_export(location)
    if is_of_ascend(location):
        return read_ascend(location, trace.rank)
    if not (len(trace.calls) or len(trace.annotations) or len(trace.operators)):
        refuse_other_tools(location)
    return trace


def _scan(path: str, events: Events, pace: Pace) -> _Content:
    """Find the requested events block by block.

    Raises:
        DoesNotFit: The layout is unknown, or not kept.
        TimesDoNotFit: A time is too large for a double, which the first one was not.
    """
    damage: list[str] = []
    keep_freed_memory()
    with paced(read_blocks(path, damage), pace) as blocks:
        head = read_head(blocks)
        start = start_of_events(head)
        layout = None if start is None else find_layout(head, start)
        if start is None or layout is None:
            raise DoesNotFit
        _refuse_merged(path, head[:start])
        first = head.index(b"{", start)
        finder = ProductFinder() if Events.PRODUCTS in events else None
        fits = times_fit_doubles(head, start)
        needs_times_alone = Events.OPERATOR_TIMES in events and Events.OPERATORS not in events
        times = OperatorTimes() if fits and needs_times_alone else None
        scanner = Scanner(layout, events, finder, times)
        columns = Columns(events)
        of_device, of_host, of_any = _decoders(events, layout, fits=fits)
        odd = OddEvents(_kind_of_event(events, Event) if fits else EventInDigits)
        for texts in scanner.scan(chain((head[first:],), blocks)):
            columns.add(of_device.decode(texts.device))
            columns.add(of_host.decode(texts.host))
            columns.add(odd.decode(texts.odd, finder))
    if finder:
        finder.scan_last(scanner.rest)
    last, tail, is_closed = decode_last(scanner.rest, of_any)
    if tail and not is_closed:
        raise DoesNotFit
    if last is not None and not layout.is_unambiguous and has_no_time(last):
        raise DoesNotFit
    columns.add([last] if last is not None else ())
    if not is_closed:
        count = scanner.events + (last is not None)
        damage.append(f"{path}: is cut off after {count} events; what was not written is lost")
    if odd.lost:
        damage.append(f"{path}: {odd.lost} of its events cannot be read and are left out")
    if times:
        columns.add_operator_times(times.spans())
        columns.add_callers(scanner.callers.names, times.named())
        if times.lost:
            raise DoesNotFit
    products = finder.products() if finder else None
    return _Content(columns, _document_around(head[:start], tail), tuple(damage), products)


def _kind_of_event(events: Events, plain: type[_Plain]) -> type[_Plain] | type[ShapedEvent]:
    """The record of an event: with inputs where they are requested."""
    return ShapedEvent if Events.SHAPES in events else plain


def _decoders(events: Events, layout: Layout, *, fits: bool) -> tuple[EventDecoder[AnyEvent], ...]:
    """What decodes events on devices, on the host, and those of either kind; ``fits`` says that doubles hold times."""
    of_device = Event if Events.GRIDS in events else DeviceEvent
    kinds: tuple[type[AnyEvent], ...] = (of_device, _kind_of_event(events, HostEvent), _kind_of_event(events, Event))
    if not fits:
        kinds = (EventInDigits,) * 3
    return tuple(EventDecoder(kind, is_unambiguous=layout.is_unambiguous) for kind in kinds)


def _refuse_merged(path: str, head: bytes) -> None:
    """Refuse what `perfscope merge` wrote: the ranks in it would count as one.

    Raises:
        NotATrace: It is that.
    """
    if MERGED_MARK in head:
        raise NotATrace(path, "is a merged timeline of ranks, for viewers", hint="analyze the traces of the ranks")


def read_head(blocks: Iterator[bytes]) -> bytes:
    """The first blocks of a trace, until there are enough events to find its layout."""
    head = b""
    for block in blocks:
        head = head + block if head else block
        start = start_of_events(head)
        if len(head) > _LARGEST_HEAD_BYTES or (start is not None and len(head) - start > _HEAD_BYTES):
            break
    return head


def _parse(path: str, events: Events) -> _Content:
    """Read the events of a file of whatever layout, block by block."""
    try:
        return _stream(path, events, _kind_of_event(events, Event))
    except TimesDoNotFit:
        return _stream(path, events, EventInDigits)


def _stream(path: str, events: Events, kind: type[Event] | type[ShapedEvent] | type[EventInDigits]) -> _Content:
    """Decode all events, and collect the requested ones.

    Raises:
        TimesDoNotFit: A time is too large for a double.
    """
    damage: list[str] = []
    blocks = read_blocks(path, damage)
    head = read_head(blocks).removeprefix(_BYTE_ORDER_MARK)
    if not head.strip():
        head += b"".join(blocks)
        if not head.strip():
            raise SourceError(path, "is empty", hint=damage[0] if damage else None)
    start = start_of_events(head)
    if start is None:
        raise NotATrace(path, "is not a trace", hint="a trace of torch.profiler is JSON with the key traceEvents")
    _refuse_merged(path, head[:start])
    columns, finder = Columns(events), ProductFinder() if Events.PRODUCTS in events else None
    stream: EventStream[AnyEvent] = EventStream(kind)
    for members, text in stream.read(head[start:], blocks):
        columns.add(members)
        if finder and text:
            finder.decode(text)
    holds_no_event = head[start : start + _LONGEST_SPACE].lstrip()[:1] not in (b"", b"{", b"]")
    is_list = b'"traceEvents"' in head or stream.is_closed
    if not stream.events and (holds_no_event or not is_list):
        raise NotATrace(path, "is not a trace", hint="it contains no event of torch.profiler")
    if not stream.is_closed:
        damage.append(f"{path}: is cut off after {stream.events} events; what was not written is lost")
    if stream.lost > 0:
        damage.append(f"{path}: {stream.lost} of its events cannot be read and are left out")
    document = _document_around(head[:start], stream.tail if stream.is_closed else b"]}")
    return _Content(columns, document, tuple(damage), finder.products() if finder else None)


def _document_around(head: bytes, tail: bytes) -> _Document:
    """The metadata before and after the events, or those before where the rest is damaged."""
    head = head.removeprefix(_BYTE_ORDER_MARK)
    for end in (tail, b"]}"):
        try:
            return msgspec.json.decode(head + end, type=_Document)
        except FAILURES:
            pass
        if len(head) + len(end) > _LARGEST_MENDED_BYTES:
            continue
        try:
            return msgspec.json.decode(repair(head + end), type=_Document)
        except FAILURES:
            pass
    return _Document()


def _to_trace(path: str, content: _Content, rank_rule: RankRule) -> Trace:
    columns, document = content.columns, content.document
    info = _metadata(document.distributed, DistributedInfo, DistributedInfo())
    hooks = _metadata(document.hooks, TraceMetadata, TraceMetadata())
    devices: list[Device] = _metadata(document.devices, list[Device], [])
    device = columns.device_events()
    dropped = [
        f"{path}: {count} events have {what} and are left out" for what, count in columns.dropped.items() if count
    ]
    if columns.repeated:
        dropped.append(f"{path}: {columns.repeated} of its device events are there twice, and are counted once")
    base_ns = _metadata(document.base_ns, int, 0)
    calls = columns.host_spans(Events.CALLS)
    names, annotations = mark_steps(hooks, base_ns, columns.names, calls, columns.host_spans(Events.ANNOTATIONS))
    trace = Trace(
        path=path,
        rank=_first(info.rank, hooks.rank, _apply(rank_rule, path)),
        world_size=_first(info.world_size, hooks.world_size),
        host=_metadata(document.host, str, ""),
        backend=info.backend,
        devices=tuple(device.name for device in sorted(devices, key=lambda device: device.id)),
        processors=max((device.processors for device in devices), default=0),
        base_ns=base_ns,
        device=device,
        calls=calls,
        annotations=annotations,
        operators=columns.operators(),
        details=columns.operator_details(),
        waits=columns.waits(),
        callers=columns.callers(),
        in_operators=None if hooks.activities == LIGHT else columns.in_operators(),
        frames=columns.host_spans(Events.FRAMES) if Events.FRAMES in columns.requested else None,
        groups=_groups(info, columns),
        collectives=tuple(columns.collectives),
        names=tuple(names),
        products=content.products,
        activities=hooks.activities or "",
        exporter="torch.profiler on MTIA" if columns.is_of_mtia else "",
        damage=(*content.damage, *dropped),
    )
    return name_exchanges(trace)


def _metadata(raw: msgspec.Raw, kind: type[_T], default: _T) -> _T:
    if not raw:
        return default
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except FAILURES:
        return default


def _first(*candidates: int | None) -> int | None:
    return next((value for value in candidates if value is not None and value >= 0), None)


def _apply(rule: RankRule, path: str) -> int | None:
    if isinstance(rule, int):
        return rule
    match = rule.search(path)
    return int(match[1]) if match else None


def _groups(info: DistributedInfo, columns: Columns) -> dict[str, ProcessGroup]:
    groups = {
        group.pg_name: ProcessGroup(group.pg_name, group.pg_desc, group.pg_size, tuple(group.ranks))
        for group in info.pg_config
    }
    for name, (description, ranks, size) in columns.groups.items():
        if name and (name not in groups or groups[name].description in ("", "undefined")):
            stated = groups[name].ranks if name in groups else ()
            members = stated or tuple(int(text) for text in re.findall(r"\d+", ranks) if "..." not in ranks)
            groups[name] = ProcessGroup(name, description, size or len(members), members)
    return groups
