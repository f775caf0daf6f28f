"""Profiles of JAX: what ran on devices, with the calls that launched it, of XPlane and of its export for Chrome.

XPlane is the protocol buffer ``XSpace`` (tsl/profiler/protobuf/xplane.proto): planes of devices and of the host, lines
of streams and threads in them, events with a name and a time. It is read by its wire format alone. The export has the
same planes as processes and the lines as threads, named by events of metadata; its events have no category.

Neither has operators of PyTorch, steps of its profiler or metadata of collectives. What XLA calls ``all-reduce`` and so
on communicates.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

import msgspec

from perfscope.constants import NS_PER_US
from perfscope.errors import NotATrace, SourceError
from perfscope.sources.traces.device_profile import Profile, ProfiledEvent, to_trace
from perfscope.sources.traces.files import open_trace
from perfscope.sources.traces.inflate import read_blocks
from perfscope.sources.traces.protobuf import message_of, number_of, read_fields, text_of
from perfscope.tables.kernel_classes import classify, classify_copy
from perfscope.tables.trace import ABSENT, Trace, Work

_PS_PER_NS = 1000
_DEVICE = re.compile(r"/device:(?:GPU|TPU):(\d+)")
_STREAM = re.compile(r"Stream #(\d+)")
_TPU_OPERATIONS = "XLA Ops"
_CALL = re.compile(r"(?:cuda|cu|hip)[A-Z]")
_COPY = re.compile(r"mem(?:cpy|set)|copy(?:device|host)|^(?:host|device)to", re.IGNORECASE)
_COMMUNICATION = re.compile(
    r"\b(?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)\b"
)
_GZIP = b"\x1f\x8b"
_IS_EXPORT = re.compile(rb'"process_name"[^{}]*\{[^{}]*"/(?:device|host):')
#: Bytes of the head that has an export's names of processes.
_HEAD_BYTES = 1 << 20
#: The numbers of fields: of the file, of planes, of entries of maps, of what has an id and a name, of lines, events and
#: values that are stated of events.
_PLANES, _HOSTS = 1, 4
_PLANE_NAME, _LINES, _EVENT_NAMES, _STAT_NAMES = 2, 3, 4, 5
_KEY, _VALUE = 1, 2
_ID, _NAME = 1, 2
_LINE_NS, _EVENTS = 3, 4
_OFFSET_PS, _DURATION_PS, _STATS = 2, 3, 4
_UNSIGNED, _SIGNED = 3, 4


def read_xplane(path: str) -> Trace:
    """Read an XPlane file.

    Raises:
        SourceError: It cannot be read, or contains nothing of a device.
    """
    with open_trace(path) as file:
        content = file.read()
    if content.startswith(_GZIP):
        try:
            content = zlib.decompressobj(wbits=31).decompress(content)
        except zlib.error as error:
            raise SourceError(path, f"cannot be read: {error}") from None
    profile = Profile()
    try:
        for number, value in read_fields(memoryview(content)):
            if number == _PLANES:
                _read_plane(message_of(value), profile)
            elif number == _HOSTS:
                profile.host = profile.host or text_of(value)
    except (IndexError, ValueError):
        profile.damage.append(f"{path}: is cut off or damaged; what follows is lost")
    return _to_trace(path, profile, "XPlane")


def is_export(path: str) -> bool:
    """Whether a file is an export of JAX for Chrome, by the names of its processes."""
    head = b""
    for block in read_blocks(path, []):
        head += block
        if len(head) >= _HEAD_BYTES:
            break
    return _IS_EXPORT.search(head) is not None


class _Args(msgspec.Struct, gc=False):
    name: str = ""
    correlation_id: int | str | None = None


class _ExportedEvent(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: int = 0
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    args: _Args | None = None


class _Export(msgspec.Struct, rename={"events": "traceEvents"}):
    events: list[_ExportedEvent] = []


def read_export(path: str) -> Trace:
    """Read an export for Chrome.

    Raises:
        SourceError: It cannot be read, or contains nothing of a device.
    """
    try:
        export = msgspec.json.decode(b"".join(read_blocks(path, [])), type=_Export, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SourceError(path, f"cannot be read: {error}") from None
    processes, threads = {}, {}
    for event in export.events:
        if event.ph == "M" and event.args:
            if event.name == "process_name":
                processes[event.pid] = event.args.name
            elif event.name == "thread_name":
                threads[event.pid, event.tid] = event.args.name
    profile = Profile()
    for event in export.events:
        if event.ph != "X":
            continue
        process, thread = processes.get(event.pid, ""), threads.get((event.pid, event.tid), "")
        correlation = _correlation(event.args.correlation_id if event.args else None)
        _add(profile, process, thread, ProfiledEvent(event.tid, event.name, _ns(event.ts), _ns(event.dur), correlation))
    return _to_trace(path, profile, "export for Chrome")


def _add(profile: Profile, plane: str, line: str, event: ProfiledEvent) -> None:
    """Add an event of a plane if it ran on a device, or launched something there."""
    device = _DEVICE.match(plane)
    if device:
        stream = _STREAM.match(line)
        if stream or line == _TPU_OPERATIONS:
            number = int(stream[1]) if stream else event.line
            members = profile.device.setdefault(int(device[1]), [])
            members.append((event._replace(line=number), _work(event.name)))
    elif event.correlation != ABSENT and _CALL.match(event.name):
        profile.calls.append(event)


def _read_plane(plane: memoryview, profile: Profile) -> None:
    name, lines = "", []
    names: dict[int, str] = {}
    stats: dict[int, str] = {}
    for number, value in read_fields(plane):
        if number == _PLANE_NAME:
            name = text_of(value)
        elif number == _LINES:
            lines.append(message_of(value))
        elif number in (_EVENT_NAMES, _STAT_NAMES):
            entry = dict(read_fields(message_of(value)))
            metadata = dict(read_fields(message_of(entry.get(_VALUE))))
            (names if number == _EVENT_NAMES else stats)[number_of(entry.get(_KEY))] = text_of(metadata.get(_NAME))
    correlation = next((number for number, text in stats.items() if text == "correlation_id"), None)
    for line in lines:
        _read_line(line, name, names, correlation, profile)


def _read_line(
    line: memoryview, plane: str, names: Mapping[int, str], correlation: int | None, profile: Profile
) -> None:
    fields = list(read_fields(line))
    head = dict(fields)
    title, thread, base_ns = text_of(head.get(_NAME)), number_of(head.get(_ID)), number_of(head.get(_LINE_NS))
    for number, value in fields:
        if number != _EVENTS:
            continue
        event: dict[int, int] = {}
        identity = ABSENT
        for key, part in read_fields(message_of(value)):
            if isinstance(part, int):
                event[key] = part
            elif key == _STATS and correlation is not None and identity == ABSENT:
                stat = dict(read_fields(part))
                if stat.get(_ID) == correlation:
                    identity = number_of(stat.get(_UNSIGNED, stat.get(_SIGNED)), ABSENT)
        start_ps = event.get(_OFFSET_PS, 0)
        start_ns, end_ns = (base_ns + ps // _PS_PER_NS for ps in (start_ps, start_ps + event.get(_DURATION_PS, 0)))
        name = names.get(event.get(_ID, 0), "")
        _add(profile, plane, title, ProfiledEvent(thread, name, start_ns, end_ns - start_ns, identity))


def _to_trace(path: str, profile: Profile, what: str) -> Trace:
    if not profile.device:
        hint = "; ".join(profile.damage) or "perfscope reads what ran on its GPUs and TPUs"
        raise NotATrace(path, f"is a profile of JAX ({what}) without anything that ran on a device", hint=hint)
    return to_trace(path, profile, f"JAX ({what})")


def _work(name: str) -> Work:
    """What an event of a device does, by the name that XLA or the library gives it."""
    if _COPY.search(name):
        return classify_copy(name)
    return Work.COMMUNICATION if _COMMUNICATION.search(name) else classify(name)


def _correlation(written: int | str | None) -> int:
    try:
        return ABSENT if written is None else int(written)
    except ValueError:
        return ABSENT


def _ns(microseconds: float) -> int:
    whole = int(microseconds // 1)
    return whole * NS_PER_US + round((microseconds - whole) * NS_PER_US)
