"""Traces of torch_npu's profiler (``trace_view.json``): what ran on an Ascend NPU, and what launched it.

The file is a list of events. Processes are named by events of metadata: ``Ascend Hardware`` has the tasks of the NPU,
one thread a stream; ``HCCL`` (``Communication`` in newer versions) the collectives, which consist of several tasks;
``CANN`` the calls of the runtime. A task, a collective and the call that launched it share a ``connection_id``; without
calls, arrows lead from operators to tasks. Waits and records of events are tasks, too, but no work. Which tasks compute
is what the profiler's own ``Overlap Analysis`` adds up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

import msgspec

from perfscope.constants import NS_PER_US
from perfscope.errors import NotATrace
from perfscope.sources.stores.location import is_url
from perfscope.sources.traces.device_profile import Profile, ProfiledEvent, to_trace
from perfscope.sources.traces.inflate import read_blocks
from perfscope.sources.traces.layout import start_of_events
from perfscope.sources.traces.stream import EventStream
from perfscope.tables.trace import ABSENT, STEP_MARK, Trace, Work

_EXPORTER = "torch_npu on Ascend"
_TASKS = b'"Ascend Hardware"'
_NPU, _RUNTIME, _COLLECTIVES = "Ascend Hardware", "CANN", ("HCCL", "Communication")
_OF_GROUP = re.compile(r"^Group .*Communication$")
_IS_NO_WORK = re.compile(
    r"^other$|event|notify|place_?holder|write.?value|profiling_enable|model_|stream_?(?:active|switch)|label|nop|end_?graph",
    re.IGNORECASE,
)
_IS_COPY = re.compile(r"mem(?:cpy|copy)|sdma|pcie_dma|reduce_?(?:async|inline)", re.IGNORECASE)
_ARROW = "async_npu"
_RANK = re.compile(r"profiler_info_(\d+)\.json$")
#: The largest time that nanoseconds in 64 bits hold, and the longest duration.
_LAST_US, _WEEK_US = 2**63 // 1000, 7 * 86_400 * 10**6
Number: TypeAlias = int | str


class _Args(msgspec.Struct, gc=False, rename={"task": "Task Type", "connection": "connection_id"}):
    name: str = ""
    task: str = ""
    connection: Number | None = None


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: Number = 0
    tid: Number = 0
    ts: Decimal = Decimal(0)
    dur: Decimal = Decimal(0)
    id: Number | None = None
    args: _Args | None = None


def is_of_ascend(path: str) -> bool:
    """Whether a file is a list of events that names the tasks of an NPU."""
    rest = b""
    for block in read_blocks(path, []):
        if not rest and not block.lstrip().startswith(b"["):
            return False
        if _TASKS in rest + block:
            return True
        rest = block[-len(_TASKS) :]
    return False


def read_ascend(path: str, rank: int | None) -> Trace:
    """Read a trace of torch_npu's profiler.

    Args:
        path: The file.
        rank: The rank that its name states; a file ``profiler_info_N.json`` of its folder decides else.

    Raises:
        SourceError: It cannot be read, or contains nothing that ran on an NPU.
    """
    damage: list[str] = []
    profile = _sort(_read_events(path, damage))
    if not profile.device:
        hint = "; ".join(damage) or None
        raise NotATrace(path, f"is a trace of {_EXPORTER} without anything that ran on an NPU", hint=hint)
    profile.damage.extend(damage)
    return to_trace(path, profile, _EXPORTER, rank if rank is not None else _rank_beside(path))


def _read_events(path: str, damage: list[str]) -> list[_Event]:
    """All events with possible times; what is lost is added as sentences."""
    blocks = read_blocks(path, damage)
    head = b""
    while (start := start_of_events(head)) is None and (block := next(blocks, b"")):
        head += block
    stream = EventStream(_Event)
    members = [event for chunk, _ in stream.read(head[start:], blocks) for event in chunk]
    events = [event for event in members if _is_possible(event)]
    lost = max(0, stream.lost) + len(members) - len(events)
    if not stream.is_closed:
        damage.append(f"{path}: is cut off after {stream.events} events; what was not written is lost")
    if lost:
        damage.append(f"{path}: {lost} of its events cannot be read and are left out")
    return events


def _is_possible(event: _Event) -> bool:
    """Whether an event has times that can be: numbers, of which a duration is neither negative nor a week."""
    return event.ts.is_finite() and abs(event.ts) < _LAST_US and event.dur.is_finite() and 0 <= event.dur < _WEEK_US


def _sort(events: list[_Event]) -> Profile:
    """The events by what they are of."""
    processes: dict[Number, str] = {}
    threads: dict[tuple[Number, Number], str] = {}
    for event in events:
        if event.name == "process_name" and event.args:
            processes[event.pid] = event.args.name
        elif event.name == "thread_name" and event.args:
            threads[event.pid, event.tid] = event.args.name
    devices = {pid: number for number, pid in enumerate(pid for pid, name in processes.items() if name == _NPU)}
    timed = [event for event in events if event.ph == "X"]
    collectives = [
        event
        for event in timed
        if processes.get(event.pid) in _COLLECTIVES and _OF_GROUP.match(threads.get((event.pid, event.tid), ""))
    ]
    in_collectives = {_connection(event) for event in collectives} - {ABSENT}
    profile = Profile()
    for event in collectives:
        # The collectives of a file are those of its first NPU.
        profile.device.setdefault(0, []).append((_profiled(event), Work.COMMUNICATION))
    for event in timed:
        if event.pid in devices:
            work = _work_of(event)
            if work is not None and _connection(event) not in in_collectives:
                profile.device.setdefault(devices[event.pid], []).append((_profiled(event), work))
        elif processes.get(event.pid) == _RUNTIME and _connection(event) != ABSENT:
            profile.calls.append(_profiled(event))
        elif event.cat == "cpu_op":
            (profile.annotations if event.name.startswith(STEP_MARK) else profile.operators).append(_profiled(event))
    if not profile.calls:
        profile.calls.extend(_launches(events))
    return profile


def _launches(events: list[_Event]) -> Iterator[ProfiledEvent]:
    """The moments at which operators launched tasks, by the arrows between them, where no call was recorded."""
    begins = {event.id: event for event in events if event.ph == "s" and event.cat == _ARROW}
    ends = {(event.pid, event.tid, event.ts): event.id for event in events if event.ph == "f" and event.cat == _ARROW}
    for event in events:
        begin = begins.get(ends.get((event.pid, event.tid, event.ts))) if event.ph == "X" else None
        if begin is not None and _connection(event) != ABSENT:
            yield ProfiledEvent(_line(begin), begin.name, _ns(begin.ts), 0, _connection(event))


def _work_of(event: _Event) -> Work | None:
    """What a task does; None where it does nothing."""
    task = event.args.task if event.args else ""
    if _IS_NO_WORK.search(event.name) or (task.lower() != "other" and _IS_NO_WORK.search(task)):
        return None
    return Work.COPY if _IS_COPY.search(event.name) or _IS_COPY.search(task) else Work.COMPUTE


def _profiled(event: _Event) -> ProfiledEvent:
    return ProfiledEvent(_line(event), event.name, _ns(event.ts), _ns(event.dur), _connection(event))


def _line(event: _Event) -> int:
    return event.tid if isinstance(event.tid, int) else ABSENT


def _connection(event: _Event) -> int:
    connection = event.args.connection if event.args else None
    return connection if isinstance(connection, int) else ABSENT


def _ns(microseconds: Decimal) -> int:
    return int((microseconds * NS_PER_US).to_integral_value())


def _rank_beside(path: str) -> int | None:
    """The rank that the profiler wrote into the name of a file, two folders above the trace."""
    if is_url(path):
        return None
    matches = [_RANK.search(file.name) for file in Path(path).absolute().parent.parent.glob("profiler_info_*.json")]
    ranks = {int(match[1]) for match in matches if match}
    return ranks.pop() if len(ranks) == 1 else None
