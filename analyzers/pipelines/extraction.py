"""Extracts the passes of micro-batches from one rank's trace: when each ran, and how long the device worked for it.

The time of a pass is the union of the device work that was launched for it, copies and communication inside layers
included, transfers between stages and the gradient synchronisation of data parallelism not: NCCL's kernels spin until
the peer is ready. Time that two passes cover counts for the pass that began first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.communication.calls import SYNCHRONISING, members_of, operation_named
from perfscope.analyzers.pipelines.inference import PassEvents, infer_passes
from perfscope.analyzers.pipelines.launches import LaunchedEvents, find_launched_events, label_steps, training_steps
from perfscope.analyzers.pipelines.marks import PassMark, are_of_hooks, find_marks
from perfscope.analyzers.pipelines.rank_passes import CollectiveRun, MeasuredPass, RankPasses, RankStep, Transfer
from perfscope.analyzers.shared.intervals import Intervals, union
from perfscope.schedules.operations import PassKind
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, HostSpans, Trace, span_at

#: Collectives of each name that are used in a step to align clocks.
_MOST_COLLECTIVE_ENDS = 20


@dataclass(frozen=True, slots=True, eq=False)
class _LocatedPass:
    """A pass with its mark, where it has one, and its positions in the order of launch."""

    events: PassEvents
    mark: PassMark | None
    first: int
    last: int


def extract_passes(trace: Trace) -> RankPasses | None:
    """The passes and transfers of every step; None for a trace that shows no sign of a pipeline."""
    marks = find_marks(trace.names)
    if len(trace.device) == 0:
        steps = _extract_host_steps(trace, marks) if are_of_hooks(marks) else ()
    else:
        steps = _extract_device_steps(trace, marks)
    if not any(step.passes for step in steps):
        return None
    mark = next(iter(marks.values()), None)
    return RankPasses(
        # A rank without a world size was read off the file's name, which anybody can change.
        rank=trace.rank if trace.world_size is not None else None,
        world_size=trace.world_size,
        host=trace.host,
        groups=tuple(trace.groups.values()),
        device=mark.device if mark else None,
        devices=mark.devices if mark else None,
        is_marked=bool(marks),
        steps=steps,
    )


def _extract_device_steps(trace: Trace, marks: dict[int, PassMark]) -> tuple[RankStep, ...]:
    events = find_launched_events(trace)
    if not marks and not events.is_transfer.any():
        return ()
    spans = trace.annotations.take(np.isin(trace.annotations.name, list(marks)))
    step_of_span = span_at(training_steps(trace), spans.start_ns)
    steps = []
    for index, label in enumerate(label_steps(trace)):
        rows = np.flatnonzero(events.step == index)
        if marks:
            passes = _locate_marked(events, spans, np.flatnonzero(step_of_span == index), marks)
        else:
            passes = [
                _LocatedPass(inferred, None, int(inferred.rows[0]), int(inferred.rows[-1]))
                for inferred in infer_passes(events, rows)
            ]
        steps.append(
            RankStep(
                label=label,
                passes=_measure_passes(events, passes, trace.base_ns),
                transfers=_list_transfers(trace, events, rows),
                collectives=_find_collectives(trace, events, rows),
            )
        )
    return tuple(steps)


def _locate_marked(
    events: LaunchedEvents, spans: HostSpans, step_spans: Int64, marks: dict[int, PassMark]
) -> list[_LocatedPass]:
    """The events of each mark of a step, in the order of the marks, without transfers.

    A pass may have launched nothing: the first stage has no input to make a gradient for.
    """
    span_of_event = span_at(spans, events.launch_ns)
    passes = []
    for span in step_spans.tolist():
        mark = marks[int(spans.name[span])]
        rows = np.flatnonzero((span_of_event == span) & ~events.is_transfer)
        position = int(np.searchsorted(events.launch_ns, spans.start_ns[span]))
        first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (position, position - 1)
        passes.append(_LocatedPass(PassEvents(mark.kind, rows), mark, first, last))
    return passes


def _measure_passes(events: LaunchedEvents, passes: Sequence[_LocatedPass], base_ns: int) -> tuple[MeasuredPass, ...]:
    is_work = _find_work(events, [located.events for located in passes])
    covered = [
        union(events.start_ns[rows], events.end_ns[rows])
        for rows in (located.events.rows[is_work[located.events.rows]] for located in passes)
    ]
    work_ns = _share_overlaps(covered)
    measured = []
    last_end = 0
    for located, times, work in zip(passes, covered, work_ns, strict=True):
        start = int(times.start[0]) + base_ns if len(times) else last_end
        last_end = int(times.end[-1]) + base_ns if len(times) else last_end
        measured.append(
            MeasuredPass(
                kind=located.events.kind,
                microbatch=located.mark.microbatch if located.mark else None,
                stage=located.mark.stage if located.mark else None,
                start_ns=start,
                end_ns=last_end,
                work_ns=work,
                first=located.first,
                last=located.last,
            )
        )
    return tuple(measured)


def _share_overlaps(covered: Sequence[Intervals]) -> list[int]:
    """The time of each pass, without what a pass that began earlier covers as well."""
    work_ns = [0] * len(covered)
    claimed = Intervals()
    for index in sorted(range(len(covered)), key=lambda index: (_first_ns(covered[index]), index)):
        work_ns[index] = (covered[index] - claimed).measure
        claimed = claimed | covered[index]
    return work_ns


def _first_ns(times: Intervals) -> int:
    return int(times.start[0]) if len(times) else 0


def _find_work(events: LaunchedEvents, passes: Sequence[PassEvents]) -> Bool:
    """Which events are work: all but communication, unless it is inside layers.

    Where groups have no description, communication that at least half of the forward passes contain is inside layers.
    """
    forwards = [forward.rows for forward in passes if forward.kind is PassKind.FORWARD]
    counts: Counter[tuple[int, int]] = Counter()
    for rows in forwards:
        communicating = rows[events.is_communication[rows]]
        counts.update(
            set(zip(events.name[communicating].tolist(), events.collective[communicating].tolist(), strict=True))
        )
    inside_layers = {key for key, count in counts.items() if 2 * count >= len(forwards)}
    work = ~events.is_communication | events.splits_layers
    for pass_events in passes:
        for row in pass_events.rows[events.is_communication[pass_events.rows]].tolist():
            work[row] |= (int(events.name[row]), int(events.collective[row])) in inside_layers
    return np.asarray(work & ~events.is_transfer)


def _list_transfers(trace: Trace, events: LaunchedEvents, rows: Int64) -> tuple[Transfer, ...]:
    transfers = []
    for row in rows[events.is_transfer[rows]].tolist():
        code = int(events.collective[row])
        collective = trace.collectives[code] if code != ABSENT else None
        start, end = int(events.start_ns[row]) + trace.base_ns, int(events.end_ns[row]) + trace.base_ns
        operation = collective.operation.lower() if collective else ""
        transfers.append(Transfer(start, end, row, operation, collective.peer if collective else None))
    return tuple(transfers)


def _find_collectives(trace: Trace, events: LaunchedEvents, rows: Int64) -> dict[tuple[str, int], CollectiveRun]:
    runs: dict[tuple[str, int], CollectiveRun] = {}
    counts: Counter[str] = Counter()
    for row in rows[events.is_communication[rows] & ~events.is_transfer[rows]].tolist():
        name = trace.names[int(events.name[row])]
        code = int(events.collective[row])
        if code != ABSENT:  # each stage has groups of its own, whose operations are called the same
            stated = trace.collectives[code]
            if operation_named(stated.operation) not in SYNCHRONISING:
                continue
            group = trace.groups.get(stated.group)
            name = f"{name} in {stated.group}: {members_of(group.ranks) if group else ''}"
        if counts[name] < _MOST_COLLECTIVE_ENDS:
            end_ns = int(events.end_ns[row])
            runs[name, counts[name]] = CollectiveRun(end_ns + trace.base_ns, end_ns - int(events.start_ns[row]))
            counts[name] += 1
    return runs


def _extract_host_steps(trace: Trace, marks: dict[int, PassMark]) -> tuple[RankStep, ...]:
    """Passes on a CPU, where the host does the work: the marks' own times."""
    spans = trace.annotations.take(np.isin(trace.annotations.name, list(marks)))
    step = span_at(training_steps(trace), spans.start_ns)
    return tuple(
        RankStep(label, _measure_host_passes(spans.take(step == index), marks, trace.base_ns), (), {})
        for index, label in enumerate(label_steps(trace))
    )


def _measure_host_passes(spans: HostSpans, marks: dict[int, PassMark], base_ns: int) -> tuple[MeasuredPass, ...]:
    return tuple(
        MeasuredPass(
            kind=marks[name].kind,
            microbatch=marks[name].microbatch,
            stage=marks[name].stage,
            start_ns=start + base_ns,
            end_ns=start + duration + base_ns,
            work_ns=duration,
            first=position,
            last=position,
        )
        for position, (name, start, duration) in enumerate(
            zip(spans.name.tolist(), spans.start_ns.tolist(), spans.duration_ns.tolist(), strict=True)
        )
    )
