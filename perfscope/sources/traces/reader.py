"""Reads one trace of torch.profiler, plain or gzip, whole or damaged, as a Trace.

A trace in one of the layouts that exporters write is scanned block by block while it is inflated: only the requested
events are kept. Any other trace is parsed as a whole, and one that cannot be parsed is salvaged event by event.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import chain
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from perfscope.constants import MIB, MOST_RANKS
from perfscope.errors import NotATrace, SourceError
from perfscope.sources.traces.columns import Columns
from perfscope.sources.traces.files import RANK_IN_FILE_NAME, RankRule
from perfscope.sources.traces.inflate import read_ahead, read_blocks
from perfscope.sources.traces.metadata import LARGEST_PART_BYTES, start_of_events
from perfscope.sources.traces.products import ProductFinder
from perfscope.sources.traces.records import (
    KIND,
    DistributedInfo,
    Event,
    TraceDevice,
)
from perfscope.sources.traces.scan import Scanner, find_layout, kind_of_event
from perfscope.sources.traces.step_marks import mark_steps
from perfscope.sources.traces.stream import FAILURES, DoesNotFit, EventStream, chunks, repair
from perfscope.tables.columns import Int64
from perfscope.tables.products import Products
from perfscope.tables.trace import ABSENT, ALL_EVENTS, Events, ProcessGroup, Trace, Work, distinct, span_at
from perfscope.wire import LIGHT, TRACE_METADATA
from perfscope.wire.traces import MERGED_MARK, TraceMetadata, file_name

_HEAD_BYTES = MIB
_LARGEST_MENDED_BYTES = MIB
#: HOST_PROCESS.NANOSECONDS.pt.trace.json, as torch's tensorboard_trace_handler calls a file.
_NAME_BY_TORCH = re.compile(r"(.+)_(\d+)\.\d+\.pt\.trace\.json")
#: What torch.profiler writes around its events, and the categories of some that perfscope does not read.
_OF_TORCH = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|record_shapes)"'
    rb'|"cat"\s*:\s*"(?:Trace|overhead|ac2g|fwdbwd|cpu_instant_event|gpu_user_annotation|'
    + "|".join(KIND).encode()
    + rb')"'
)
_EVENT_OR_END = re.compile(rb"\s*(?:[{\]]|\Z)")
_PHASE = re.compile(rb'"ph"\s*:\s*"[XBEbe]"')
_COLLECTIVE = re.compile(r"^(?:nccl2?|rccl|xccl):")
_ON_DEVICE = re.compile("DtoD")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_T = TypeVar("_T")
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


class _Content(Struct, frozen=True):
    columns: Columns
    document: _Document
    damage: tuple[str, ...]
    products: Products | None = None


def read_trace(
    path: str | os.PathLike[str],
    events: Events = ALL_EVENTS,
    rank_rule: RankRule = RANK_IN_FILE_NAME,
) -> Trace:
    """Read a trace, by its path or URL; only the requested kinds of events are decoded.

    ``rank_rule`` finds the rank of a trace that does not state it. Raises SourceError: the file cannot be opened, is
    empty, or is not a trace.
    """
    location = os.fspath(path)
    try:
        content = _scan(location, events)
    except DoesNotFit:
        content = _parse(location, events)
    trace = _to_trace(location, content, rank_rule)
    if not any(len(table) for table in (trace.device, trace.calls, trace.annotations, trace.operators)):
        _refuse_other_tools(location)
    return trace


def _scan(path: str, events: Events) -> _Content:
    """Find the requested events block by block; DoesNotFit where the layout is unknown, or not kept."""
    damage: list[str] = []
    with read_ahead(path, damage) as blocks:
        head = read_head(blocks)
        start = start_of_events(head)
        layout = None if start is None else find_layout(head, start)
        if start is None or layout is None:
            raise DoesNotFit
        _refuse_merged(path, head[:start])
        scanner = Scanner(events, layout)
        scanner.collect(chain((head[head.index(b"{", start) :],), chunks(blocks)))
    tail, is_closed = scanner.finish()
    if not is_closed:
        damage.append(f"{path}: is cut off after {scanner.events} events; what was not written is lost")
    products = scanner.finder.products() if scanner.finder else None
    return _Content(scanner.columns, _document_around(head[:start], tail), tuple(damage), products)


def _refuse_other_tools(path: str) -> None:
    """Refuse a file of events in Chrome's format of which torch.profiler writes none."""
    has_events = False
    for block in read_blocks(path, []):
        if _OF_TORCH.search(block):
            return
        has_events = has_events or _PHASE.search(block) is not None
    if has_events:
        hint = "perfscope reads those of torch.profiler"
        raise NotATrace(path, "is a trace of another tool: torch.profiler writes none of its events", hint=hint)


def _refuse_merged(path: str, head: bytes) -> None:
    """Refuse what `perfscope export` wrote: the ranks in it would count as one."""
    if MERGED_MARK in head:
        raise NotATrace(path, "is a merged timeline of ranks, for viewers", hint="analyze the traces of the ranks")


def read_head(blocks: Iterator[bytes]) -> bytes:
    """The first blocks of a trace, until there are enough events to find its layout."""
    head = b""
    for block in blocks:
        head = head + block if head else block
        start = start_of_events(head)
        if len(head) > LARGEST_PART_BYTES or (start is not None and len(head) - start > _HEAD_BYTES):
            break
    return head


def read_events(path: str, kind: type[_T]) -> Iterator[list[_T]]:
    """Yield all events of a trace, those of a block together; damaged ones are left out.

    ``kind`` is a msgspec.Struct of the keys that are wanted, with a default for each. Raises SourceError: the file
    cannot be opened, or is not a trace.
    """
    blocks = read_blocks(path, [])
    head = read_head(blocks)
    start = start_of_events(head)
    if start is None:
        raise NotATrace(path, "is not a trace", hint="a trace of torch.profiler is JSON with the key traceEvents")
    for events, _ in EventStream(kind).read(head[start:], blocks):
        yield events


def _parse(path: str, events: Events) -> _Content:
    """Decode all events of a file of whatever layout, block by block, and collect the requested ones."""
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
    stream: EventStream[Event] = EventStream(kind_of_event(events))
    for members, text in stream.read(head[start:], blocks):
        columns.add(members)
        if finder and text:
            finder.decode(text)
    holds_no_event = not _EVENT_OR_END.match(head, start)
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
    devices: list[TraceDevice] = _metadata(document.devices, list[TraceDevice], [])
    device = columns.device_events()
    dropped = [
        f"{path}: {count} events have {what} and are left out" for what, count in columns.dropped.items() if count
    ]
    if columns.repeated:
        dropped.append(f"{path}: {columns.repeated} of its device events are there twice, and are counted once")
    base_ns = _metadata(document.base_ns, int, 0)
    calls = columns.host_spans(Events.CALLS)
    names, annotations = mark_steps(hooks, base_ns, columns.sorted_names, calls, columns.host_spans(Events.ANNOTATIONS))
    trace = Trace(
        path=path,
        rank=_first(info.rank, hooks.rank, _apply(rank_rule, path)),
        world_size=_first(*(size for size in (info.world_size, hooks.world_size) if (size or 0) <= MOST_RANKS)),
        host=_metadata(document.host, str, "") or hooks.host or "",
        backend=info.backend,
        devices=tuple(device.name for device in sorted(devices, key=lambda device: device.id)),
        processors=max((device.processors for device in devices), default=0),
        base_ns=base_ns,
        device=device,
        calls=calls,
        annotations=annotations,
        operators=columns.operators(),
        details=columns.operator_details(),
        callers=columns.callers(),
        in_operators=None if hooks.activities == LIGHT else columns.in_operators(),
        frames=columns.host_spans(Events.FRAMES) if Events.FRAMES in columns.requested else None,
        groups=_groups(info, columns),
        axes=hooks.axes,
        collectives=tuple(columns.collectives),
        names=tuple(names),
        products=content.products,
        activities=hooks.activities or "",
        damage=(*content.damage, *dropped),
    )
    trace = trace if trace.host else msgspec.structs.replace(trace, host=_host_in_name(trace))
    return _find_copied_collectives(trace)


def _host_in_name(trace: Trace) -> str:
    """The host by the file's name, which torch makes of it, of the process and of the time; empty of other names."""
    match = _NAME_BY_TORCH.match(file_name(trace.path))
    return match[1] if match and int(match[2]) == trace.process else ""


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


def _find_copied_collectives(trace: Trace) -> Trace:
    """A trace in which copies on the device communicate where a collective launched them, and no kernel.

    Collectives on copy engines, as FSDP2 gathers with symmetric memory, have none. Their copies are launched inside the
    annotation of the collective, as those are that a collective makes besides its kernel.
    """
    copies, marks = trace.named(_ON_DEVICE), trace.named(_COLLECTIVE)
    if not copies.any() or not marks.any() or trace.world_size == 1:
        return trace
    device = trace.device
    is_copy = copies[device.name] & device.is_work(Work.COPY)
    rows = np.flatnonzero((is_copy | device.is_work(Work.COMMUNICATION, Work.FUSED)) & (trace.launch != ABSENT))
    mark = _mark_of(trace, trace.launch[rows], np.flatnonzero(marks[trace.annotations.name]))
    with_kernels = mark[~is_copy[rows]]
    communicates = is_copy[rows] & (mark != ABSENT) & ~np.isin(mark, with_kernels)
    if not communicates.any():
        return trace
    work = device.work.copy()
    work[rows[communicates]] = Work.COMMUNICATION
    return msgspec.structs.replace(trace, device=msgspec.structs.replace(device, work=work))


def _mark_of(trace: Trace, launch: Int64, marks: Int64) -> Int64:
    """For each launch which of some annotations of its own thread covers it, or ABSENT."""
    found = np.full(len(launch), ABSENT, np.int64)
    threads = trace.calls.thread[launch]
    for thread in distinct(threads):
        of_thread = marks[trace.annotations.thread[marks] == thread]
        mine = threads == thread
        span = span_at(trace.annotations.take(of_thread), trace.calls.start_ns[launch[mine]])
        found[mine] = np.append(of_thread, ABSENT)[span]
    return found
