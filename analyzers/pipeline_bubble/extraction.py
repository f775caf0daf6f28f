"""Extracts the passes of micro-batches from one rank's trace: when each ran, and how long the device worked for it.

The time of a pass is the union of the device work that was launched for it. Copies and communication inside layers are
included. Transfers between stages and the gradient synchronisation of data parallelism are not: NCCL's kernels spin
until the peer is ready. Time that two passes cover counts for the pass that began first.

Annotations name passes: the ranges of perfscope's own hooks, ``PP:2F3`` of torch.distributed.pipelining (stage 2,
forward, micro-batch 3), or ``Forward 3`` of its simple schedules. Elsewhere passes are inferred:

- In the order of launch, device work falls into runs: forward or backward by the thread that launched it, separated by
  transfers. A backward run is a backward pass.
- A forward run can be a forward pass, but also the optimizer, gradient accumulation or zero_grad. Runs before the first
  backward pass show what a forward pass looks like, because only forward passes follow a transfer there.
- A later run contains a forward pass if it contains, kernel by kernel, at least half of that device time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby, takewhile
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from perfscope.analyzers.collectives.calls import SYNCHRONISING, members_of, operation_named
from perfscope.analyzers.collectives.process_groups import TRANSFER
from perfscope.analyzers.pipeline_bubble.rank_passes import (
    CollectiveRun,
    MeasuredPass,
    PassesOfStep,
    RankPasses,
    Transfer,
)
from perfscope.schedules.operations import PassKind
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.intervals import Intervals, union
from perfscope.tables.trace import ABSENT, HostSpans, Trace, Work, span_at
from perfscope.wire.passes import parse_pass_range

_POINT_TO_POINT = {"", "send", "recv", "coalesced"}
_SPLITS_DATA = re.compile(r"data|(^|_)dp(_|$)", re.IGNORECASE)
_SPLITS_LAYERS = re.compile(r"tensor|context|expert|sequence|(^|_)(tp|cp|ep|sp)(_|$)", re.IGNORECASE)
_RUNTIME = re.compile(r"PP:(\d+)([FBIW])(\d+)")
_SIMPLE = re.compile(r"(Forward|Backward) (\d+)")
#: Collectives of each name that are used in a step to align clocks.
_MOST_COLLECTIVE_ENDS = 20


class LaunchedEvents(Struct, frozen=True, eq=False):
    """Device events in the order of their launch, on the trace's clock.

    ``is_backward``: the autograd engine launched it. ``splits_layers``: it communicates inside a layer (tensor,
    context, expert parallelism), which is part of the work.
    """

    name: Int64
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    step: Int64
    is_transfer: Bool
    is_backward: Bool
    is_communication: Bool
    splits_layers: Bool
    collective: Int64


class PassMark(NamedTuple):
    """One annotation that names a pass of a micro-batch, from 0; absent fields are not in its name."""

    kind: PassKind
    microbatch: int
    stage: int | None = None
    device: int | None = None
    devices: int | None = None


class _Pass(NamedTuple):
    kind: PassKind
    rows: Int64
    mark: PassMark | None
    first: int
    last: int


def extract_passes(trace: Trace) -> RankPasses | None:
    """The passes and transfers of every marked step; None for a trace that shows no sign of a pipeline."""
    marks = find_marks(trace.names)
    if len(trace.device):
        steps = _extract_device_steps(trace, marks)
    elif any(mark.devices is not None for mark in marks.values()):  # those of hooks exclude waiting for transfers
        steps = _extract_host_steps(trace, marks)
    else:
        return None
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


def find_marks(names: Sequence[str]) -> dict[int, PassMark]:
    """The marks among the names of a trace by their index, in the most detailed spelling that occurs."""
    spellings: tuple[dict[int, PassMark], ...] = ({}, {}, {})
    for index, name in enumerate(names):
        if (parsed := parse_pass_range(name)) is not None:
            kind, *numbers = parsed
            spellings[0][index] = PassMark(PassKind(kind), *numbers)
        elif match := _RUNTIME.fullmatch(name):
            spellings[1][index] = PassMark(PassKind(match[2]), int(match[3]), int(match[1]))
        elif match := _SIMPLE.fullmatch(name):
            spellings[2][index] = PassMark(PassKind(match[1][0]), int(match[2]))
    return next((marks for marks in spellings if marks), {})


def _labels(trace: Trace) -> list[str]:
    return [trace.names[name].partition("#")[2] for name in trace.steps.name]


def _extract_host_steps(trace: Trace, marks: dict[int, PassMark]) -> tuple[PassesOfStep, ...]:
    spans = trace.annotations.take(np.isin(trace.annotations.name, list(marks)))
    passes: list[list[MeasuredPass]] = [[] for _ in range(len(trace.steps))]
    for step, name, start, end in zip(
        span_at(trace.steps, spans.start_ns).tolist(),
        spans.name.tolist(),
        (spans.start_ns + trace.base_ns).tolist(),
        (spans.end_ns + trace.base_ns).tolist(),
        strict=True,
    ):
        if step != ABSENT:
            mark, at = marks[name], len(passes[step])
            passes[step].append(MeasuredPass(mark.kind, mark.microbatch, mark.stage, start, end, end - start, at, at))
    return tuple(PassesOfStep(label, tuple(own), (), {}) for label, own in zip(_labels(trace), passes, strict=True))


def _extract_device_steps(trace: Trace, marks: dict[int, PassMark]) -> tuple[PassesOfStep, ...]:
    events = find_launched_events(trace)
    if not marks and not events.is_transfer.any():
        return ()
    spans = trace.annotations.take(np.isin(trace.annotations.name, list(marks)))
    step_of_span = span_at(trace.steps, spans.start_ns)
    steps = []
    for index, label in enumerate(_labels(trace)):
        rows = np.flatnonzero(events.step == index)
        if marks:
            passes = _locate_marked(events, spans, np.flatnonzero(step_of_span == index), marks)
        else:
            passes = [_Pass(kind, own, None, int(own[0]), int(own[-1])) for kind, own in infer_passes(events, rows)]
        steps.append(
            PassesOfStep(
                label=label,
                passes=_measure_passes(events, passes, trace.base_ns),
                transfers=_list_transfers(trace, events, rows),
                collectives=_find_collectives(trace, events, rows),
            )
        )
    return tuple(steps)


def find_launched_events(trace: Trace) -> LaunchedEvents:
    """The device events of a trace that the training script or the autograd engine launched, by recorded launches."""
    device, rows = trace.device, np.flatnonzero(trace.launch != ABSENT)
    launch_ns = trace.calls.start_ns[trace.launch[rows]]
    rows = rows[np.lexsort((device.start_ns[rows], launch_ns))]
    described = [trace.groups[one.group].description if one.group in trace.groups else "" for one in trace.collectives]
    of_layers = [bool(_SPLITS_LAYERS.search(text)) and not _SPLITS_DATA.search(text) for text in described]
    # ABSENT picks the last entry: torch.distributed.pipelining describes no transfer.
    splits_layers = np.array([*of_layers, False], np.bool_)[device.collective[rows]]
    is_pair = [one.operation.lower() in _POINT_TO_POINT for one in trace.collectives]
    is_transfer = (
        trace.named(TRANSFER)[device.name[rows]] & np.array([*is_pair, True], np.bool_)[device.collective[rows]]
    )
    is_transfer &= ~splits_layers
    # The engine runs the backward pass of a GPU on a thread of its own. Loaders and savers have threads, too, which
    # launch copies: the engine's are those that launch computation.
    thread = trace.calls.thread[trace.launch[rows]]
    counted, counts = np.unique(thread[is_transfer] if is_transfer.any() else thread, return_counts=True)
    main = int(counted[np.argmax(counts)]) if len(counted) else ABSENT
    is_backward = (thread != main) & np.isin(thread, thread[device.work[rows] == Work.COMPUTE])
    own = (thread == main) | is_backward
    rows = rows[own]
    launch_ns = trace.calls.start_ns[trace.launch[rows]]
    return LaunchedEvents(
        name=device.name[rows].astype(np.int64),
        start_ns=device.start_ns[rows],
        end_ns=device.end_ns[rows],
        launch_ns=launch_ns,
        step=span_at(trace.steps, launch_ns),
        is_transfer=is_transfer[own],
        is_backward=is_backward[own],
        is_communication=device.is_work(Work.COMMUNICATION)[rows],
        splits_layers=splits_layers[own],
        collective=device.collective[rows],
    )


def _locate_marked(
    events: LaunchedEvents, spans: HostSpans, step_spans: Int64, marks: dict[int, PassMark]
) -> list[_Pass]:
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
        passes.append(_Pass(mark.kind, rows, mark, first, last))
    return passes


_TRANSFER, _BACKWARD, _FORWARD = range(3)


def infer_passes(events: LaunchedEvents, rows: Int64) -> list[tuple[PassKind, Int64]]:
    """The forward and backward passes of one step, in the order of their launch; empty where there is no backward.

    What the autograd engine launches after a transfer and only communicates is gradient synchronisation, and no pass.
    """
    role = np.where(events.is_transfer[rows], _TRANSFER, np.where(events.is_backward[rows], _BACKWARD, _FORWARD))
    parts = np.split(rows, np.flatnonzero(np.diff(role)) + 1)
    runs = [(of_role, part) for (of_role, _), part in zip(groupby(role.tolist()), parts, strict=True)]
    runs = [
        (of_role, part) for of_role, part in runs if of_role != _BACKWARD or not events.is_communication[part].all()
    ]
    roles = [of_role for of_role, _ in runs]
    if _BACKWARD not in roles:
        return []
    pattern = _ForwardPattern(events, runs[: roles.index(_BACKWARD)])
    passes: list[tuple[PassKind, Int64]] = []
    carried = rows[:0]  # work before a backward pass that is part of it
    for index, (of_role, run) in enumerate(runs):
        follows_backward = index > 0 and roles[index - 1] == _BACKWARD
        if of_role == _BACKWARD:
            passes.append((PassKind.BACKWARD, np.concatenate([carried, run])))
            carried = rows[:0]
        elif of_role == _FORWARD:
            # A run after a transfer starts clean: only the pass's own preparation can precede it.
            before, forward, after = pattern.cut(run, starts_clean=index > 0 and not follows_backward)
            if follows_backward and index < len(runs) - 1:
                passes[-1] = PassKind.BACKWARD, np.concatenate([passes[-1][1], before])
            if len(forward):
                passes.append((PassKind.FORWARD, forward))
            carried = after if len(forward) or follows_backward else before
            carried = carried if _BACKWARD in roles[index + 1 : index + 2] else rows[:0]
    return passes


class _ForwardPattern:
    """What the forward pass of a stage looks like: its kernels in order, and their time by name.

    It is the longest of the forward runs before any backward pass, of those after a transfer where there are any.
    """

    def __init__(self, events: LaunchedEvents, runs: Sequence[tuple[int, Int64]]) -> None:
        self._events = events
        candidates = [self._computing(run) for role, run in runs if role == _FORWARD]
        if runs and runs[0][0] == _FORWARD and len(candidates) > 1:
            del candidates[0]
        lasting_ns = events.end_ns - events.start_ns
        rows = max(candidates, key=lambda rows: int(lasting_ns[rows].sum()), default=events.name[:0])
        self._names: list[int] = events.name[rows].tolist()
        self._counts = Counter(self._names)
        time_ns: Counter[int] = Counter()
        for name, kernel_ns in zip(self._names, lasting_ns[rows].tolist(), strict=True):
            time_ns[name] += kernel_ns
        self._mean_ns = {name: time_ns[name] / count for name, count in self._counts.items()}
        self._total_ns = time_ns.total()

    def _computing(self, rows: Int64) -> Int64:
        return rows[~self._events.is_communication[rows]]

    def cut(self, rows: Int64, *, starts_clean: bool) -> tuple[Int64, Int64, Int64]:
        computing = self._computing(rows)
        names: list[int] = self._events.name[computing].tolist()
        common = Counter(names) & self._counts
        found_ns = sum(count * self._mean_ns[name] for name, count in common.items())
        if 2 * found_ns < self._total_ns or not self._total_ns:
            return rows, rows[:0], rows[:0]
        begin = 0 if starts_clean else self._find_begin(names)
        # The pass ends after the pattern where it matches kernel for kernel; else with the run.
        end = begin + len(self._names)
        end = end if names[begin:end] == self._names else len(names)
        first = int(np.searchsorted(rows, computing[begin])) if begin else 0
        stop = int(np.searchsorted(rows, computing[end])) if end < len(computing) else len(rows)
        return rows[:first], rows[first:stop], rows[stop:]

    def _find_begin(self, names: Sequence[int]) -> int:
        lengths = [
            sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(names[position:], self._names, strict=False)))
            for position in range(len(names))
        ]
        return lengths.index(max(lengths)) if lengths else 0


def _measure_passes(events: LaunchedEvents, passes: Sequence[_Pass], base_ns: int) -> tuple[MeasuredPass, ...]:
    is_work = _find_work(events, passes)
    covered = [
        union(events.start_ns[rows], events.end_ns[rows]) for rows in (one.rows[is_work[one.rows]] for one in passes)
    ]
    work_ns, claimed = [0] * len(passes), Intervals()
    for index in sorted(range(len(passes)), key=lambda at: int(covered[at].start[0]) if len(covered[at]) else 0):
        work_ns[index] = (covered[index] - claimed).measure
        claimed = claimed | covered[index]
    measured: list[MeasuredPass] = []
    last_end = 0
    for one, times, work in zip(passes, covered, work_ns, strict=True):
        start = int(times.start[0]) + base_ns if len(times) else last_end
        last_end = int(times.end[-1]) + base_ns if len(times) else last_end
        microbatch, stage = (one.mark.microbatch, one.mark.stage) if one.mark else (None, None)
        measured.append(MeasuredPass(one.kind, microbatch, stage, start, last_end, work, one.first, one.last))
    return tuple(measured)


def _find_work(events: LaunchedEvents, passes: Sequence[_Pass]) -> Bool:
    """Which events are work: all but communication, unless it is inside layers.

    Where groups have no description, communication that at least half of the forward passes contain is inside layers.
    """
    kinds = [
        [(int(events.name[row]), int(events.collective[row])) for row in one.rows[events.is_communication[one.rows]]]
        for one in passes
    ]
    forwards = [set(own) for one, own in zip(passes, kinds, strict=True) if one.kind is PassKind.FORWARD]
    counts = Counter(kind for own in forwards for kind in own)
    work = ~events.is_communication | events.splits_layers
    for one, own in zip(passes, kinds, strict=True):
        is_inside = np.array([2 * counts[kind] >= max(len(forwards), 1) for kind in own], np.bool_)
        work[one.rows[events.is_communication[one.rows]]] |= is_inside
    return np.asarray(work & ~events.is_transfer)


def _list_transfers(trace: Trace, events: LaunchedEvents, rows: Int64) -> tuple[Transfer, ...]:
    transfers = []
    for row in rows[events.is_transfer[rows]].tolist():
        code = int(events.collective[row])
        operation = trace.collectives[code].operation.lower() if code != ABSENT else ""
        start, end = int(events.start_ns[row]) + trace.base_ns, int(events.end_ns[row]) + trace.base_ns
        transfers.append(Transfer(start, end, row, operation))
    return tuple(transfers)


def _find_collectives(trace: Trace, events: LaunchedEvents, rows: Int64) -> dict[tuple[str, int], CollectiveRun]:
    runs: dict[tuple[str, int], CollectiveRun] = {}
    counts: Counter[str] = Counter()
    for row in rows[events.is_communication[rows] & ~events.is_transfer[rows]].tolist():
        name, code = trace.names[int(events.name[row])], int(events.collective[row])
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
