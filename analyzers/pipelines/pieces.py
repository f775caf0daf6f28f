"""One rank's passes of micro-batches, from its trace: when each ran and for how long the device worked for it.

The time of a pass is the union of the device work that was launched for it, copies and communication inside layers
included, transfers between stages and the gradient synchronisation of data parallelism not: NCCL's kernels spin until
the other side is there. What two passes cover at the same time counts for the one that began first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfscope.analyzers.pipelines.launches import Launched, launched, step_labels, steps_of
from perfscope.analyzers.pipelines.marks import Mark, is_ours, marks_in
from perfscope.analyzers.pipelines.passes import FoundPass, find_passes
from perfscope.analyzers.shared.intervals import Intervals, union
from perfscope.schedules.orders import Kind
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, HostSpans, ProcessGroup, Trace, span_at

#: Collectives of a step that are kept for the alignment of clocks.
_MOST_MEETINGS = 20


@dataclass(frozen=True, slots=True)
class Piece:
    """One pass of one micro-batch as it ran.

    Attributes:
        kind: Which pass.
        microbatch, stage: Which micro-batch on which virtual stage; absent where nothing tells.
        start_ns, end_ns: From its first to its last device work, on the wall clock.
        work_ns: Time for which the device worked for it.
        first, last: Places of its first and last event in the order of launch.
    """

    kind: Kind
    microbatch: int | None
    stage: int | None
    start_ns: int
    end_ns: int
    work_ns: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """One kernel that moves activations or gradients between stages; it may send and receive at once.

    Attributes:
        start_ns, end_ns: When it ran, on the wall clock.
        place: Its place in the order of launch.
        operation: ``send`` or ``recv``; ``""`` where the trace does not tell.
        peer: The other rank; absent where the trace does not tell.
    """

    start_ns: int
    end_ns: int
    place: int
    operation: str
    peer: int | None


@dataclass(frozen=True, slots=True)
class RankStep:
    """One training step of one rank.

    Attributes:
        label: What the profiler calls the step.
        pieces: Its passes in the order of launch.
        transfers: Its transfers in the order of launch.
        meetings: When collectives ended, by name and count: all ranks leave one at nearly the same time.
    """

    label: str
    pieces: tuple[Piece, ...]
    transfers: tuple[Transfer, ...]
    meetings: dict[tuple[str, int], int]

    def shifted(self, offset_ns: int) -> RankStep:
        """The same step on a clock that is ahead by ``offset_ns``."""
        return RankStep(
            self.label,
            tuple(
                replace(one, start_ns=one.start_ns + offset_ns, end_ns=one.end_ns + offset_ns) for one in self.pieces
            ),
            tuple(
                replace(one, start_ns=one.start_ns + offset_ns, end_ns=one.end_ns + offset_ns) for one in self.transfers
            ),
            {key: end_ns + offset_ns for key, end_ns in self.meetings.items()},
        )


@dataclass(frozen=True, slots=True)
class RankPieces:
    """What one trace tells of a pipeline.

    Attributes:
        rank: Whose it is; absent where the trace itself does not tell.
        world_size: Ranks of the job; absent likewise.
        host: The machine; ``""`` where the trace does not tell.
        groups: The process groups that the trace describes.
        device, devices: Place in the pipeline and its length, where marks tell.
        is_marked: Whether marks, not inference, told the passes.
        steps: Its training steps.
    """

    rank: int | None
    world_size: int | None
    host: str
    groups: tuple[ProcessGroup, ...]
    device: int | None
    devices: int | None
    is_marked: bool
    steps: tuple[RankStep, ...]

    def followed_by(self, later: RankPieces) -> RankPieces:
        """The same rank with the steps of a later trace as well."""
        return replace(self, steps=self.steps + later.steps)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A pass with its mark, where it has one, and where it lies in the order of launch."""

    found: FoundPass
    mark: Mark | None
    first: int
    last: int


def pieces_of(trace: Trace) -> RankPieces | None:
    """The passes and transfers of every step; None for a trace that shows no sign of a pipeline."""
    marks = marks_in(trace.names)
    if len(trace.device) == 0:
        steps = _on_the_host(trace, marks) if is_ours(marks) else ()
    else:
        steps = _on_the_device(trace, marks)
    if not any(step.pieces for step in steps):
        return None
    told = next(iter(marks.values()), None)
    return RankPieces(
        # A rank without a world size was read off the file's name, which anybody can change.
        rank=trace.rank if trace.world_size is not None else None,
        world_size=trace.world_size,
        host=trace.host,
        groups=tuple(trace.groups.values()),
        device=told.device if told else None,
        devices=told.devices if told else None,
        is_marked=bool(marks),
        steps=steps,
    )


def _on_the_device(trace: Trace, marks: dict[int, Mark]) -> tuple[RankStep, ...]:
    events = launched(trace)
    if not marks and not events.is_transfer.any():
        return ()
    spans = trace.annotations.take(np.isin(trace.annotations.name, list(marks)))
    step_of_span = span_at(steps_of(trace), spans.start_ns)
    names = [trace.names[name] for name in events.name[events.is_communication & ~events.is_transfer].tolist()]
    meeting_names = dict(
        zip(np.flatnonzero(events.is_communication & ~events.is_transfer).tolist(), names, strict=True)
    )
    steps = []
    for index, label in enumerate(step_labels(trace)):
        rows = np.flatnonzero(events.step == index)
        if marks:
            passes = _marked(events, spans, np.flatnonzero(step_of_span == index), marks)
        else:
            passes = [_Found(each, None, int(each.rows[0]), int(each.rows[-1])) for each in find_passes(events, rows)]
        steps.append(
            RankStep(
                label=label,
                pieces=_pieces(events, passes, trace.base_ns),
                transfers=_transfers(trace, events, rows),
                meetings=_meetings(events, rows, meeting_names, trace.base_ns),
            )
        )
    return tuple(steps)


def _marked(events: Launched, spans: HostSpans, inside: Int64, marks: dict[int, Mark]) -> list[_Found]:
    """The events of each mark of a step, in the order of the marks, without transfers.

    A pass may have launched nothing: the first stage has no input to make a gradient for.
    """
    span = span_at(spans, events.launch_ns)
    found = []
    for each in inside.tolist():
        mark = marks[int(spans.name[each])]
        rows = np.flatnonzero((span == each) & ~events.is_transfer)
        place = int(np.searchsorted(events.launch_ns, spans.start_ns[each]))
        first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (place, place - 1)
        found.append(_Found(FoundPass(mark.kind, rows), mark, first, last))
    return found


def _pieces(events: Launched, passes: Sequence[_Found], base_ns: int) -> tuple[Piece, ...]:
    counted = _is_work(events, [one.found for one in passes])
    covered = [
        union(events.start_ns[rows], events.end_ns[rows])
        for rows in (one.found.rows[counted[one.found.rows]] for one in passes)
    ]
    own: dict[int, int] = {}
    claimed = Intervals()
    for place in sorted(range(len(passes)), key=lambda place: (_first_ns(covered[place]), place)):
        own[place] = (covered[place] - claimed).measure
        claimed = claimed | covered[place]
    pieces = []
    reached = 0
    for place, one in enumerate(passes):
        mark = one.mark
        times = covered[place]
        start = int(times.start[0]) + base_ns if len(times) else reached
        reached = int(times.end[-1]) + base_ns if len(times) else reached
        pieces.append(
            Piece(
                kind=one.found.kind,
                microbatch=mark.microbatch if mark else None,
                stage=mark.stage if mark else None,
                start_ns=start,
                end_ns=reached,
                work_ns=own[place],
                first=one.first,
                last=one.last,
            )
        )
    return tuple(pieces)


def _first_ns(times: Intervals) -> int:
    return int(times.start[0]) if len(times) else 0


def _is_work(events: Launched, passes: Sequence[FoundPass]) -> np.ndarray:
    """Which events are work: all but communication, unless it is inside layers.

    Where groups have no description, communication that most forward passes have too is inside layers.
    """
    forwards = [one.rows for one in passes if one.kind is Kind.FORWARD]
    seen: Counter[tuple[int, int]] = Counter()
    for rows in forwards:
        communicating = rows[events.is_communication[rows]]
        seen.update(
            set(zip(events.name[communicating].tolist(), events.collective[communicating].tolist(), strict=True))
        )
    usual = {key for key, count in seen.items() if 2 * count >= len(forwards)}
    work = ~events.is_communication | events.splits_layers
    for one in passes:
        for row in one.rows[events.is_communication[one.rows]].tolist():
            work[row] |= (int(events.name[row]), int(events.collective[row])) in usual
    return work & ~events.is_transfer


def _transfers(trace: Trace, events: Launched, rows: Int64) -> tuple[Transfer, ...]:
    found = []
    for row in rows[events.is_transfer[rows]].tolist():
        code = int(events.collective[row])
        told = trace.collectives[code] if code != ABSENT else None
        start, end = int(events.start_ns[row]) + trace.base_ns, int(events.end_ns[row]) + trace.base_ns
        operation = told.operation.lower() if told else ""
        found.append(Transfer(start, end, row, operation, told.peer if told else None))
    return tuple(found)


def _meetings(events: Launched, rows: Int64, names: dict[int, str], base_ns: int) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    counts: Counter[str] = Counter()
    for row in rows.tolist():
        if row in names and counts[names[row]] < _MOST_MEETINGS:
            found[names[row], counts[names[row]]] = int(events.end_ns[row]) + base_ns
            counts[names[row]] += 1
    return found


def _on_the_host(trace: Trace, marks: dict[int, Mark]) -> tuple[RankStep, ...]:
    """Passes on a CPU, where the host does the work: the marks' own times."""
    spans = trace.annotations.take(np.isin(trace.annotations.name, list(marks)))
    step = span_at(steps_of(trace), spans.start_ns)
    return tuple(
        RankStep(label, _host_pieces(spans.take(step == index), marks, trace.base_ns), (), {})
        for index, label in enumerate(step_labels(trace))
    )


def _host_pieces(spans: HostSpans, marks: dict[int, Mark], base_ns: int) -> tuple[Piece, ...]:
    return tuple(
        Piece(
            kind=marks[name].kind,
            microbatch=marks[name].microbatch,
            stage=marks[name].stage,
            start_ns=start + base_ns,
            end_ns=start + duration + base_ns,
            work_ns=duration,
            first=place,
            last=place,
        )
        for place, (name, start, duration) in enumerate(
            zip(spans.name.tolist(), spans.start_ns.tolist(), spans.duration_ns.tolist(), strict=True)
        )
    )
