"""Moves the events of one trace into a merged timeline: other numbers, another clock, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from perfscope.merging.events import TraceEvent, name_track, to_json, to_ns, to_us
from perfscope.merging.slots import Slot, arrow_id, name_host_process
from perfscope.sources.traces.reader import read_events

_ON_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "Kernel", "Memcpy", "Memset"))
_ARROWS = frozenset("stf")
_METADATA = "M"
_KEPT_METADATA = frozenset(("thread_name", "thread_sort_index"))
#: Threads that a trace names instead of numbering them.
_FIRST_NAMED_THREAD = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Move:
    """How one trace is moved.

    Attributes:
        trace: The file.
        index: Its position among all traces.
        slot: The slot of its rank.
        shift_ns: Added to its times.
        first_ns, last_ns: What lies outside is left out; absent where all of it is wanted. After the shift.
        devices: Its devices that ran something.
    """

    trace: str
    index: int
    slot: Slot
    shift_ns: int
    first_ns: int | None
    last_ns: int | None
    devices: tuple[int, ...]


class MovedTrace:
    """The events of one trace in the merged timeline.

    Attributes:
        events: How many were written.
        without_time: How many state no time that can be read, and are left out.
    """

    def __init__(self, move: Move) -> None:
        self.events = self.without_time = 0
        self._move = move
        self._processes: dict[int | str, int] = {}
        self._named_threads: dict[tuple[int, str], int] = {}
        self._thread_names: list[TraceEvent] = []
        self._arrows: dict[tuple[str, bytes], list[TraceEvent]] = {}

    def read(self) -> Iterator[list[TraceEvent]]:
        """Yield the events, some at a time.

        Raises:
            SourceError: The file cannot be read.
        """
        for events in read_events(self._move.trace, TraceEvent):
            moved = [event for event in events if self._moves(event)]
            self.events += len(moved)
            yield moved
        has_ends = (arrow for arrow in self._arrows.values() if {"s", "f"} <= {event.ph for event in arrow})
        whole = [event for arrow in has_ends for event in arrow]
        for event in whole:
            self._number(event)
        self.events += len(whole)
        yield whole
        yield list(self._name_tracks())

    def _moves(self, event: TraceEvent) -> bool:
        """Whether an event is to be written now; its times and numbers are the new ones then."""
        if event.ph == _METADATA:
            if event.name in _KEPT_METADATA:
                self._thread_names.append(event)
            return False
        try:
            start_ns = to_ns(bytes(event.ts)) + self._move.shift_ns
            end_ns = start_ns + (to_ns(bytes(event.dur)) if event.dur else 0)
        except ValueError:
            self.without_time += 1
            return False
        event.ts = to_us(start_ns)
        if self._is_cut:
            if end_ns < (self._move.first_ns or 0) or start_ns > (self._move.last_ns or 0):
                return False
            if event.ph in _ARROWS:  # an arrow with one end points nowhere
                self._arrows.setdefault((event.cat, bytes(event.id)), []).append(event)
                return False
        self._number(event)
        return True

    @property
    def _is_cut(self) -> bool:
        return self._move.first_ns is not None

    def _number(self, event: TraceEvent) -> None:
        if event.id:
            event.id = self._number_arrow(bytes(event.id))
        event.pid = self._number_process(event)
        event.tid = self._number_thread(event.pid, event.tid)

    def _number_arrow(self, text: bytes) -> msgspec.Raw:
        if text.isdigit():
            return msgspec.Raw(b"%d" % arrow_id(self._move.index, int(text)))
        return to_json(f"{self._move.index} {text.decode('utf-8', 'replace')}")

    def _number_process(self, event: TraceEvent) -> int:
        """A device's process is one of the device; a process of the host may have the number of a device."""
        slot, pid = self._move.slot, event.pid
        is_device = isinstance(pid, int) and (
            event.cat in _ON_DEVICE or (pid != slot.process and pid in self._move.devices)
        )
        if is_device:
            assert isinstance(pid, int)
            number = slot.device_process(pid)
        elif pid == slot.process:
            number = slot.host_process
        else:
            number = self._processes.get(pid or "", 0) or slot.other_process(len(self._processes))
        self._processes[f"GPU {pid}" if is_device else pid or ""] = number
        return number

    def _number_thread(self, process: int, thread: int | str | None) -> int:
        if isinstance(thread, int):
            return thread
        return self._named_threads.setdefault((process, thread or ""), _FIRST_NAMED_THREAD + len(self._named_threads))

    def _name_tracks(self) -> Iterator[TraceEvent]:
        """Names of the processes that have an event, and of their threads."""
        slot, used = self._move.slot, set(self._processes.values())
        for owner, process in self._processes.items():
            is_host = process == slot.host_process
            yield from name_track(process, name_host_process(slot) if is_host else _name(slot, owner), process)
        for event in self._thread_names:
            event.pid = self._number_process(event)
            event.tid = self._number_thread(event.pid, event.tid)
            event.ts = to_us(0)
            if event.pid in used:
                yield event
        for (process, name), thread in self._named_threads.items():
            yield from name_track(process, name or "profiler", thread, thread)


def _name(slot: Slot, owner: int | str) -> str:
    """What viewers call a process of a trace that is not its rank's own on the host."""
    return f"{slot.label}: {f'process {owner}' if isinstance(owner, int) else owner or 'profiler'}"
