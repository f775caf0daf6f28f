"""Extracts the passes of micro-batches from one rank's trace: when each ran, and how long the device worked for it.

The time of a pass is the union of the device work that was launched for it. Copies and communication inside layers are
included. Transfers between stages and the gradient synchronisation of data parallelism are not: NCCL's kernels spin
until the peer is ready. Time that two passes cover counts for the pass that began first.

The device events of a rank in the order of launch, each with its step and its role in the pipeline.

The launch of a kernel decides its step and whether it is part of a backward pass, which the autograd engine launches
from another thread. Transfers between stages are NCCL's SendRecv kernels. They spin until the peer is ready, so they
are waiting time and never work.

Annotations of a trace that name the pass of a micro-batch which the host was launching.

Three spellings are read: the ranges of perfscope's own hooks, ``PP:2F3`` of torch.distributed.pipelining's runtime
(stage 2, forward, micro-batch 3), and ``Forward 3`` of its simple schedules.

Infers the passes of micro-batches in one step of one rank where no marks name them.

In the order of launch, device work falls into runs: forward or backward by the thread that launched it, separated by
transfers. A backward run is a backward pass. A forward run can be a forward pass, but also the optimizer, gradient
accumulation after a backward pass, or zero_grad before the first forward pass. Runs before the first backward pass show
what a forward pass looks like, because only forward passes follow a transfer there. A later run contains a forward pass
if it contains, kernel by kernel, at least half of that device time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from perfscope.analyzers.communication.calls import SYNCHRONISING, members_of, operation_named
from perfscope.analyzers.pipelines.rank_passes import CollectiveRun, MeasuredPass, RankPasses, RankStep, Transfer
from perfscope.analyzers.shared.intervals import Intervals, union
from perfscope.schedules.operations import PassKind
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, HostSpans, Trace, Work, span_at
from perfscope.wire.passes import parse_pass_range

_SEND_RECV = re.compile(r"SendRecv|sendrecv")
_POINT_TO_POINT = {"", "send", "recv", "coalesced"}
_PIPELINE = re.compile(r"pipeline|(^|_)(pp|pipe)(_|$)", re.IGNORECASE)
#: A group that joins more than stages is no pipeline: Megatron's EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP.
_NOT_PIPELINE = re.compile(r"tensor|expert|data|context", re.IGNORECASE)
_SPLITS_DATA = re.compile(r"data|(^|_)dp(_|$)", re.IGNORECASE)
_SPLITS_LAYERS = re.compile(r"tensor|context|expert|sequence|(^|_)(tp|cp|ep|sp)(_|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedEvents:
    """Device events in the order of their launch.

    Attributes:
        name: Index into the trace's names.
        start_ns, end_ns: When it ran, on the trace's clock.
        launch_ns: When the host launched it.
        step: Row of the step it was launched in, or ABSENT.
        is_transfer: It moves activations or gradients between stages.
        is_backward: The autograd engine launched it.
        is_communication: It communicates, transfers included.
        splits_layers: It communicates inside a layer (tensor, context, expert parallelism): part of the work.
        collective: Index into the trace's collectives, or ABSENT.
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

    def __len__(self) -> int:
        return len(self.name)


def is_pipeline_group(description: str) -> bool:
    """Whether a process group's description says that it joins the stages of a pipeline."""
    return _PIPELINE.search(description) is not None and _NOT_PIPELINE.search(description) is None


def find_launched_events(trace: Trace) -> LaunchedEvents:
    """The device events of a trace that the training script or the autograd engine launched, by recorded launches."""
    call = trace.launch
    rows = np.flatnonzero(call != ABSENT)
    device = trace.device
    is_transfer = _find_transfers(trace)
    launch_ns = trace.calls.start_ns[call[rows]]
    rows = rows[np.lexsort((device.start_ns[rows], launch_ns))]
    call = call[rows]
    main, engines = _find_training_threads(trace, rows, trace.calls.thread[call], is_transfer[rows])
    of_training = (trace.calls.thread[call] == main) | np.isin(trace.calls.thread[call], engines)
    rows, call = rows[of_training], call[of_training]
    launch_ns = trace.calls.start_ns[call]
    return LaunchedEvents(
        name=device.name[rows].astype(np.int64),
        start_ns=device.start_ns[rows],
        end_ns=device.end_ns[rows],
        launch_ns=launch_ns,
        step=span_at(training_steps(trace), launch_ns),
        is_transfer=is_transfer[rows],
        is_backward=trace.calls.thread[call] != main,
        is_communication=device.is_work(Work.COMMUNICATION)[rows],
        splits_layers=_find_layer_communication(trace)[rows],
        collective=device.collective[rows],
    )


def training_steps(trace: Trace) -> HostSpans:
    """The training steps: the profiler's; else between the ends of optimizer steps; else the trace as a single step."""
    if len(trace.steps):
        return trace.steps
    ends = np.unique(trace.annotated("Optimizer.step#").end_ns)
    starts = [table.start_ns for table in (trace.calls, trace.annotations) if len(table)]
    if not starts:
        return trace.steps
    times = np.concatenate(starts)
    edges = np.unique(np.concatenate([[times.min()], ends, [times.max() + 1]])).astype(np.int64)
    count = len(edges) - 1
    absent = np.full(count, ABSENT, np.int64)
    return HostSpans(absent.astype(np.int32), edges[:-1], np.diff(edges), absent, absent, absent, absent)


def label_steps(trace: Trace) -> tuple[str, ...]:
    """A name for each of the steps: the profiler's number, or their position in the trace."""
    if not len(trace.steps):
        return tuple(str(position) for position in range(len(training_steps(trace))))
    return tuple(trace.names[name].partition("#")[2] for name in trace.steps.name)


def _find_transfers(trace: Trace) -> Bool:
    is_send_recv = np.array([_SEND_RECV.search(name) is not None for name in trace.names], np.bool_)
    is_pipeline = np.array(
        [
            collective.operation.lower() in _POINT_TO_POINT and not _is_layer_group(_describe(trace, collective.group))
            for collective in trace.collectives
        ]
        + [True],  # ABSENT picks the last entry: torch.distributed.pipelining describes no transfer
        np.bool_,
    )
    return np.asarray(is_send_recv[trace.device.name] & is_pipeline[trace.device.collective])


def _find_layer_communication(trace: Trace) -> Bool:
    splits = [_is_layer_group(_describe(trace, collective.group)) for collective in trace.collectives]
    return np.asarray(np.array([*splits, False], np.bool_)[trace.device.collective])


def _is_layer_group(description: str) -> bool:
    return _SPLITS_LAYERS.search(description) is not None and _SPLITS_DATA.search(description) is None


def _describe(trace: Trace, group: str) -> str:
    return trace.groups[group].description if group in trace.groups else ""


def _find_training_threads(trace: Trace, rows: Int64, thread: Int64, is_transfer: Bool) -> tuple[int, Int64]:
    """The training script's thread, and those of the autograd engine: the remaining threads that launch computation.

    The engine runs the backward pass of a GPU on a thread of its own. Loaders and savers have threads too, which launch
    copies.
    """
    main = _most_frequent(thread[is_transfer] if is_transfer.any() else thread)
    return main, np.unique(thread[(thread != main) & (trace.device.work[rows] == Work.COMPUTE)])


def _most_frequent(values: Int64) -> int:
    if not len(values):
        return ABSENT
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[np.argmax(counts)])


@dataclass(frozen=True, slots=True)
class PassMark:
    """One annotation that names a pass of a micro-batch.

    Attributes:
        kind: Which pass.
        microbatch: Which micro-batch, from 0.
        stage: The virtual stage; absent where the annotation does not name it.
        device: The pipeline's device, and ``devices`` their number; absent where the annotation does not name them.
    """

    kind: PassKind
    microbatch: int
    stage: int | None = None
    device: int | None = None
    devices: int | None = None


_RUNTIME = re.compile(r"PP:(\d+)([FBIW])(\d+)")
_SIMPLE = re.compile(r"(Forward|Backward) (\d+)")
_SIMPLE_KINDS = {"Forward": PassKind.FORWARD, "Backward": PassKind.BACKWARD}


def parse_hooks_range(text: str) -> PassMark | None:
    """Read the range of perfscope's hooks; None for any other text."""
    parsed = parse_pass_range(text)
    if parsed is None:
        return None
    return PassMark(PassKind(parsed.kind), parsed.microbatch, parsed.stage, parsed.device, parsed.devices)


def _parse_runtime_action(text: str) -> PassMark | None:
    match = _RUNTIME.fullmatch(text)
    return None if match is None else PassMark(PassKind(match[2]), int(match[3]), int(match[1]))


def _parse_simple_schedule(text: str) -> PassMark | None:
    match = _SIMPLE.fullmatch(text)
    return None if match is None else PassMark(_SIMPLE_KINDS[match[1]], int(match[2]))


#: Parsers of the spellings, the most detailed spelling first.
_PARSERS: tuple[Callable[[str], PassMark | None], ...] = (
    parse_hooks_range,
    _parse_runtime_action,
    _parse_simple_schedule,
)


def find_marks(names: tuple[str, ...]) -> dict[int, PassMark]:
    """The marks among the names of a trace by their index, in the most detailed spelling that occurs."""
    for parse in _PARSERS:
        marks = {index: mark for index, name in enumerate(names) if (mark := parse(name)) is not None}
        if marks:
            return marks
    return {}


def are_of_hooks(marks: dict[int, PassMark]) -> bool:
    """Whether the marks are of perfscope's hooks, which exclude the time of waiting for transfers."""
    return any(mark.devices is not None for mark in marks.values())


_FORWARD, _BACKWARD, _TRANSFER = range(3)
_NO_ROWS = np.zeros(0, np.int64)
#: Consecutive kernels that must match before a run is cut where the forward pass begins.
_LEAST_MATCHING = 3


@dataclass(frozen=True, slots=True, eq=False)
class PassEvents:
    """One pass: its kind and the rows of its events in launch order."""

    kind: PassKind
    rows: Int64


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Consecutive events of one role."""

    role: int
    rows: Int64


class _ForwardPattern:
    """What the forward pass of a stage looks like: its kernels in order, and their time by name."""

    def __init__(self, events: LaunchedEvents, rows: Int64) -> None:
        rows = rows[~events.is_communication[rows]]
        self.names = events.name[rows].tolist()
        time: Counter[int] = Counter()
        for name, kernel_ns in zip(self.names, (events.end_ns[rows] - events.start_ns[rows]).tolist(), strict=True):
            time[name] += kernel_ns
        self.counts = Counter(self.names)
        self.mean_ns = {name: time[name] / count for name, count in self.counts.items()}
        self.total_ns = sum(time.values())

    def is_in(self, names: Sequence[int]) -> bool:
        """Whether kernels with half of the pattern's time are present."""
        common = Counter(names) & self.counts
        return 2 * sum(count * self.mean_ns[name] for name, count in common.items()) >= self.total_ns > 0

    def find_begin(self, names: Sequence[int]) -> int:
        """The position from which most kernels match the pattern; 0 where too few do."""
        matches = [(self._count_matching(names, position), -position) for position in range(len(names))]
        longest, negative_position = max(matches, default=(0, 0))
        return -negative_position if longest >= min(_LEAST_MATCHING, len(self.names)) else 0

    def find_end(self, names: Sequence[int], begin: int) -> int:
        """The position behind the pattern where it matches kernel for kernel; else the end of the run."""
        end = begin + len(self.names)
        return end if list(names[begin:end]) == self.names else len(names)

    def _count_matching(self, names: Sequence[int], position: int) -> int:
        length = 0
        for name, expected in zip(names[position:], self.names, strict=False):
            if name != expected:
                break
            length += 1
        return length


def infer_passes(events: LaunchedEvents, rows: Int64) -> list[PassEvents]:
    """The forward and backward passes of one step, in the order of their launch; empty where there is no backward.

    What the autograd engine launches behind a transfer and only communicates is gradient synchronisation, and no pass.
    """
    runs = [run for run in _split_runs(events, rows) if not _is_gradient_synchronisation(events, run)]
    backward_runs = [index for index, run in enumerate(runs) if run.role == _BACKWARD]
    if not backward_runs:
        return []
    pattern = _find_pattern(events, runs[: backward_runs[0]])
    passes: list[PassEvents] = []
    carried = _NO_ROWS  # work in front of a backward pass that is part of it
    for index, run in enumerate(runs):
        follows_backward = index > 0 and runs[index - 1].role == _BACKWARD
        if run.role == _BACKWARD:
            passes.append(PassEvents(PassKind.BACKWARD, np.concatenate([carried, run.rows])))
            carried = _NO_ROWS
        elif run.role == _FORWARD:
            before, forward, after = _cut(events, run.rows, pattern, starts_clean=index > 0 and not follows_backward)
            ends_the_step = index == len(runs) - 1 and index > backward_runs[-1]
            if follows_backward and not ends_the_step:
                passes[-1] = PassEvents(PassKind.BACKWARD, np.concatenate([passes[-1].rows, before]))
            if len(forward):
                passes.append(PassEvents(PassKind.FORWARD, forward))
            precedes_backward = index + 1 < len(runs) and runs[index + 1].role == _BACKWARD
            carried = after if len(forward) else (before if not follows_backward else carried)
            carried = carried if precedes_backward else _NO_ROWS
    return passes


def _split_runs(events: LaunchedEvents, rows: Int64) -> list[_Run]:
    role = np.where(events.is_transfer[rows], _TRANSFER, np.where(events.is_backward[rows], _BACKWARD, _FORWARD))
    runs = []
    start = 0
    for run_role, members in groupby(role.tolist()):
        end = start + sum(1 for _ in members)
        runs.append(_Run(run_role, rows[start:end]))
        start = end
    return runs


def _is_gradient_synchronisation(events: LaunchedEvents, run: _Run) -> bool:
    return run.role == _BACKWARD and bool(events.is_communication[run.rows].all())


def _find_pattern(events: LaunchedEvents, runs: Sequence[_Run]) -> _ForwardPattern | None:
    """The longest of the forward runs before any backward pass, of those behind a transfer where there are any."""
    patterns = [_ForwardPattern(events, run.rows) for run in runs if run.role == _FORWARD]
    behind_transfer = patterns[1:] if runs and runs[0].role == _FORWARD and len(patterns) > 1 else patterns
    return max(behind_transfer, key=lambda pattern: pattern.total_ns, default=None)


def _cut(
    events: LaunchedEvents, rows: Int64, pattern: _ForwardPattern | None, *, starts_clean: bool
) -> tuple[Int64, Int64, Int64]:
    """Split a run into what precedes its forward pass, the pass, and what follows; all precedes where there is none.

    A run behind a transfer starts clean: only the pass's own preparation can precede it.
    """
    computing = rows[~events.is_communication[rows]]
    names = events.name[computing].tolist()
    if pattern is None or not pattern.is_in(names):
        return rows, _NO_ROWS, _NO_ROWS
    begin = 0 if starts_clean else pattern.find_begin(names)
    end = pattern.find_end(names, begin)
    first = int(np.searchsorted(rows, computing[begin])) if begin else 0
    stop = int(np.searchsorted(rows, computing[end])) if end < len(computing) else len(rows)
    return rows[:first], rows[first:stop], rows[stop:]


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
