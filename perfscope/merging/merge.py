"""Writes one trace of all ranks: each rank's events on the common clock, and above them the tracks of all ranks.

Each trace is moved by a worker into a piece of its own, a member of a gzip file; the pieces one after the other are
the merged file. It appears when it is whole. A moved event has another clock and other numbers, and is else unchanged.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import msgspec
from isal import igzip

from perfscope.analyzers.timeline import JobTracks, RankTracks, join_tracks, measure_tracks
from perfscope.constants import MIB
from perfscope.engine.inputs import Inputs
from perfscope.errors import MissingInput, NotATrace, SourceError
from perfscope.merging.events import (
    Slot,
    TraceEvent,
    arrow_id,
    assign_slots,
    draw_overview,
    name_track,
    to_json,
    to_ns,
    to_text,
    to_us,
)
from perfscope.sources.traces.files import RankRule
from perfscope.sources.traces.reader import read_events, read_trace
from perfscope.tables.trace import BASIC_EVENTS, Events
from perfscope.wire import TRACE_METADATA
from perfscope.wire.traces import MERGED_MARK
from perfscope.workers import start_workers

_A = TypeVar("_A")
_B = TypeVar("_B")
_LEVEL = 1  # of igzip: a tenth larger than 3, and three times as fast
_HEAD = b'{"schemaVersion":1,"displayTimeUnit":"ms","%b":{%b},"traceEvents":[\n' % (
    TRACE_METADATA.encode(),
    MERGED_MARK,
)
_NEEDS = BASIC_EVENTS | Events.OPERATOR_TIMES
_ON_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"))
_ARROWS = frozenset("stf")
_KEPT_METADATA = frozenset(("thread_name", "thread_sort_index"))
#: Threads that a trace names instead of numbering them.
_FIRST_NAMED_THREAD = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a job is merged: some ranks, from the begin of some steps to their end; all where these are empty."""

    ranks: frozenset[int]
    steps: tuple[int, ...]
    rank_rule: RankRule
    workers: int


@dataclass(frozen=True, slots=True)
class MergedTrace:
    """One trace in the merged file."""

    path: str
    rank: int | None
    offset_ns: int
    residual_ns: int | None
    events: int


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged file, its traces in the order of ranks, and how many operations of several ranks it shows.

    ``reference`` is the rank whose clock is the common one; None where the hosts' clocks are taken as they are.
    """

    path: Path
    bytes: int
    traces: tuple[MergedTrace, ...]
    reference: int | None
    operations: int
    notes: tuple[str, ...]
    damage: tuple[str, ...]


def merge(inputs: Inputs, target: Path, choice: Choice) -> Merged:
    """Write the merged file.

    Raises MissingInput: nothing is left of what was chosen. SourceError: no trace can be read, or the file be written.
    """
    typed = frozenset(inputs.locations)
    measured = _map(partial(_measure, typed=typed, rank_rule=choice.rank_rule), inputs.at_hand(), choice.workers)
    damage = [*inputs.stayed_on_hosts(), *(sentence for _, sentences in measured for sentence in sentences)]
    every = [rank for ranks, _ in measured for rank in ranks]
    if not every:
        raise SourceError(inputs.locations[0], "contains no trace that can be read", hint=damage[0] if damage else None)
    # Ranks that are not shown help to align those that are.
    job = join_tracks(every)
    tracks = _select(job, choice.ranks)
    within = tracks.window_of(choice.steps) if choice.steps else None
    if not tracks.ranks or (choice.steps and within is None):
        raise MissingInput(_explain_emptiness(job))
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            moved = _move(tracks, inputs, within, Path(folder), choice.workers)
            _assemble(target, Path(folder), moved)
    except OSError as error:
        raise SourceError(target, f"cannot be written: {error.strerror or error}") from None
    traces = {
        rank.trace: MergedTrace(rank.trace, rank.rank, clock.offset_ns, clock.residual_ns, moved[rank.trace].events)
        for rank in tracks.ranks
        for clock in [tracks.clock_of(rank.rank)]
    }
    sentences = [*damage, *inputs.missing_traces(), *(sentence for one in moved.values() for sentence in one.damage)]
    return Merged(
        path=target,
        bytes=target.stat().st_size,
        traces=tuple(traces.values()),
        reference=tracks.reference,
        operations=len(tracks.operations),
        notes=tracks.notes,
        damage=tuple(dict.fromkeys(sentences)),
    )


def _measure(trace: str, typed: frozenset[str], rank_rule: RankRule) -> tuple[tuple[RankTracks, ...], tuple[str, ...]]:
    try:
        table = read_trace(trace, _NEEDS, rank_rule)
    except SourceError as error:
        # A folder may hold other files, too.
        return (), () if isinstance(error, NotATrace) and trace not in typed else (error.problem,)
    return measure_tracks(table), table.damage


def _select(job: JobTracks, ranks: frozenset[int]) -> JobTracks:
    if not ranks:
        return job
    return msgspec.structs.replace(
        job,
        ranks=tuple(rank for rank in job.ranks if rank.rank in ranks),
        operations=tuple(operation.among(ranks) for operation in job.operations if ranks & set(operation.ranks)),
        bubbles=tuple(bubble for bubble in job.bubbles if bubble.rank in ranks),
    )


def _explain_emptiness(job: JobTracks) -> str:
    ranks = sorted({rank.rank for rank in job.ranks if rank.rank is not None})
    steps = sorted({step.number for rank in job.ranks for step in rank.steps})
    return (
        f"nothing of what was chosen is in the traces: they hold ranks {', '.join(map(str, ranks)) or 'unknown'}, "
        f"steps {', '.join(map(str, steps)) or 'unknown'}"
    )


@dataclass(frozen=True, slots=True)
class _Move:
    """How one trace is moved to ``path``: ``shift_ns`` is added to its times.

    What then lies before 0 or after ``last_ns`` is left out. ``devices`` are those that ran something.
    """

    trace: str
    index: int
    slot: Slot
    shift_ns: int
    last_ns: int | None
    devices: tuple[int, ...]
    path: Path


@dataclass(frozen=True, slots=True)
class _MovedPiece:
    path: Path
    events: int
    damage: tuple[str, ...] = ()


def _move(
    tracks: JobTracks, inputs: Inputs, within: tuple[int, int] | None, folder: Path, workers: int
) -> dict[str, _MovedPiece]:
    """Write each trace as a piece, by its name; that of ``""`` has the tracks of all ranks, and is the first one."""
    slots = assign_slots(tracks.ranks, inputs.run)
    whole = within or tracks.window()
    overview = list(draw_overview(tracks, slots, whole[0], within))
    first = folder / "all"
    with _open(first) as file:
        file.write(to_text(overview))
    base_ns = {rank.trace: rank.base_ns - tracks.clock_of(rank.rank).offset_ns for rank in tracks.ranks}
    moves = [
        _Move(
            trace=trace,
            index=index,
            slot=slots[trace],
            shift_ns=base_ns[trace] - whole[0],
            last_ns=None if within is None else within[1] - whole[0],
            devices=tuple(rank.device for rank in tracks.ranks if rank.trace == trace and rank.device is not None),
            path=folder / str(index),
        )
        for index, trace in enumerate(base_ns)
    ]
    pieces = _map(_write_piece, moves, workers)
    return {"": _MovedPiece(first, len(overview)), **dict(zip(base_ns, pieces, strict=True))}


def _write_piece(move: _Move) -> _MovedPiece:
    moved, damage, separator = _MovedTrace(move), [], b""
    with _open(move.path) as file:
        try:
            for events in moved.read():
                if events:
                    file.write(separator + to_text(events))
                    separator = b",\n"
        except SourceError as error:
            damage.append(error.problem)
    if moved.without_time:
        damage.append(f"{move.trace}: {moved.without_time} events state no time and are left out")
    return _MovedPiece(move.path, moved.events, tuple(damage))


class _MovedTrace:
    """The events of one trace in the merged timeline; those that state no time are left out."""

    def __init__(self, move: _Move) -> None:
        self.events = self.without_time = 0
        self._move = move
        self._processes: dict[int | str, int] = {}
        self._named_threads: dict[tuple[int, str], int] = {}
        self._thread_names: list[TraceEvent] = []
        self._arrows: dict[tuple[str, bytes], list[TraceEvent]] = {}

    def read(self) -> Iterator[list[TraceEvent]]:
        """Yield the events, some at a time. Raises SourceError: the file cannot be read."""
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
        last_ns = self._move.last_ns
        if event.ph == "M":
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
        if last_ns is not None:
            if end_ns < 0 or start_ns > last_ns:
                return False
            if event.ph in _ARROWS:  # an arrow with one end points nowhere
                self._arrows.setdefault((event.cat, bytes(event.id)), []).append(event)
                return False
        self._number(event)
        return True

    def _number(self, event: TraceEvent) -> None:
        arrow = bytes(event.id)
        if arrow.isdigit():
            event.id = msgspec.Raw(b"%d" % arrow_id(self._move.index, int(arrow)))
        elif arrow:
            event.id = to_json(f"{self._move.index} {arrow.decode('utf-8', 'replace')}")
        event.pid = self._number_process(event)
        event.tid = self._number_thread(event.pid, event.tid)

    def _number_process(self, event: TraceEvent) -> int:
        """A device's process is one of the device; a process of the host may have the number of a device."""
        slot, pid = self._move.slot, event.pid
        is_own = pid == slot.process
        is_device = isinstance(pid, int) and (event.cat in _ON_DEVICE or (not is_own and pid in self._move.devices))
        owner = f"GPU {pid}" if is_device else pid or ""
        number = slot.host_process if is_own and not is_device else slot.other_process(len(self._processes))
        return self._processes.setdefault(owner, number)

    def _number_thread(self, process: int, thread: int | str | None) -> int:
        if isinstance(thread, int):
            return thread
        return self._named_threads.setdefault((process, thread or ""), _FIRST_NAMED_THREAD + len(self._named_threads))

    def _name_tracks(self) -> Iterator[TraceEvent]:
        """Names of the processes that have an event, and of their threads."""
        used = set(self._processes.values())
        for owner, process in self._processes.items():
            yield from name_track(process, self._move.slot.name_process(owner, process), process)
        for event in self._thread_names:
            event.pid = self._number_process(event)
            event.tid = self._number_thread(event.pid, event.tid)
            event.ts = to_us(0)
            if event.pid in used:
                yield event
        for (process, name), thread in self._named_threads.items():
            yield from name_track(process, name or "profiler", thread, thread)


def _assemble(target: Path, folder: Path, pieces: dict[str, _MovedPiece]) -> None:
    """Put the pieces one after the other, after the metadata of the merged file."""
    for name, text in (("begin", _HEAD), ("between", b",\n"), ("end", b"\n]}\n")):
        with _open(folder / name) as file:
            file.write(text)
    members = [path for piece in pieces.values() if piece.events for path in (folder / "between", piece.path)][1:]
    whole = folder / "whole"
    with whole.open("wb") as file:
        for path in (folder / "begin", *members, folder / "end"):
            is_compressed = target.suffix == ".gz"
            with path.open("rb") if is_compressed else cast("BinaryIO", igzip.open(path, "rb")) as part:
                shutil.copyfileobj(part, file, MIB)
    whole.replace(target)


def _open(path: Path) -> BinaryIO:
    return cast("BinaryIO", igzip.open(path, "wb", compresslevel=_LEVEL))


def _map(function: Callable[[_A], _B], items: Iterable[_A], workers: int) -> list[_B]:
    """Apply a function to all items, in worker processes where there is more than one of both."""
    jobs = list(items)
    if min(workers, len(jobs)) <= 1:
        return [function(job) for job in jobs]
    with start_workers(min(workers, len(jobs))) as pool:
        return list(pool.map(function, jobs))
