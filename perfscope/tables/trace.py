"""One rank's trace as columns: what ran on the device, what the host called, what it was doing meanwhile.

Times are integer nanoseconds on the trace's own clock; ``Trace.base_ns`` is what its exporter adds for wall-clock time.
Names are stored once, in ``Trace.names``; a name column holds their indices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Flag, IntEnum, auto
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from perfscope.tables.activity import ThreadSpans
from perfscope.tables.columns import Bool, Int64, to_frame
from perfscope.tables.operator_details import OperatorDetails

if TYPE_CHECKING:
    import pandas as pd

    from perfscope.tables.products import Products

Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]

#: An integer that the trace does not state (a correlation, an external id, a size).
ABSENT = -1
#: How the annotation of a training step begins; its number follows.
STEP_MARK = "ProfilerStep#"
#: Calls that launch a kernel, and those that launch a graph.
KERNEL_LAUNCH = re.compile(r"^(?:cuda|cu|hip)\w*Launch\w*Kernel")
GRAPH_LAUNCH = re.compile(r"^(?:cuda|cu|hip)GraphLaunch")


class Events(Flag):
    """Kinds of events; a reader decodes only the requested ones.

    Attributes:
        DEVICE: Kernels, copies and fills.
        CALLS: Calls into the CUDA (HIP, XPU) runtime and driver, launches among them.
        ANNOTATIONS: Ranges that user code and frameworks marked: ``ProfilerStep#N``, ``nccl:all_reduce``.
        OPERATORS: Operators of the framework, such as ``aten::mm``.
        OPERATOR_TIMES: When threads were inside operators, for ``Trace.in_operators``.
        FRAMES: Python functions, where the profiler recorded stacks.
        SEQUENCES: With OPERATORS, the numbers by which autograd joins an operator with its backward pass.
        SHAPES: With OPERATORS, their inputs, where the profiler recorded shapes.
        CALLERS: The operators that may wait for the device, and the script's own functions, for ``Trace.callers``.
        PRODUCTS: The operators that multiply matrices, with their shapes, for ``Trace.products``.
    """

    DEVICE = auto()
    CALLS = auto()
    ANNOTATIONS = auto()
    OPERATORS = auto()
    PRODUCTS = auto()
    OPERATOR_TIMES = auto()
    FRAMES = auto()
    SEQUENCES = auto()
    CALLERS = auto()
    SHAPES = auto()


NO_EVENTS = Events(0)
ALL_EVENTS = Events.DEVICE | Events.CALLS | Events.ANNOTATIONS | Events.OPERATORS
#: The events that every analyzer needs: device time, steps, and the launches that connect them.
BASIC_EVENTS = Events.DEVICE | Events.CALLS | Events.ANNOTATIONS


class Work(IntEnum):
    """What a device event does. FUSED computes and communicates in one kernel and counts as both."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    FUSED = 3


class TimedRows(Struct, frozen=True, eq=False):
    """What took some time, in the order of start; ``name`` is an index into ``Trace.names``."""

    name: Int32
    start_ns: Int64
    duration_ns: Int64

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Int64:
        """When each ended."""
        return self.start_ns + self.duration_ns

    def take(self, index: Int64 | Bool) -> Self:
        """Some of the rows."""
        return type(self)(*(getattr(self, name)[index] for name in self.__struct_fields__))


class HostSpans(TimedRows, frozen=True, eq=False):
    """Calls, ranges or operators of host threads.

    Attributes:
        process, thread: Their ids; a name that is no number becomes a negative number.
        correlation: The id that a call shares with the device event that it launched, or ABSENT.
        external_id: The id that it shares with the operator around it, or ABSENT.
    """

    process: Int64
    thread: Int64
    correlation: Int64
    external_id: Int64


def no_spans() -> HostSpans:
    """A table without rows."""
    return HostSpans(np.zeros(0, np.int32), *(np.zeros(0, np.int64) for _ in range(6)))


class DeviceEvents(TimedRows, frozen=True, eq=False):
    """Kernels, copies and fills.

    Attributes:
        work: A value of Work.
        correlation: The id that it shares with the call that launched it, or ABSENT.
        external_id: The id that it shares with the operator that caused it, or ABSENT.
        bytes: Size of a copy or fill, or ABSENT.
        collective: Index into ``Trace.collectives``, or ABSENT.
        grid: A number that kernels launched with the same grid share, on all ranks, or ABSENT.
    """

    work: Int8
    device: Int64
    stream: Int64
    correlation: Int64
    external_id: Int64
    bytes: Int64
    collective: Int64
    grid: Int64

    def is_work(self, *kinds: Work) -> Bool:
        """Which rows are of these kinds."""
        chosen = np.zeros(len(self.work), np.bool_)
        for kind in kinds:
            chosen |= self.work == kind
        return chosen


class Collective(Struct, frozen=True):
    """The profiler's metadata of one communication kernel; what is not stated is absent, or ``""``.

    Attributes:
        operation: ``allreduce``, ``send`` and so on, as the profiler spells it.
        group: Name of the process group, and ``group_size`` its ranks.
        in_elements, out_elements: Elements on this rank.
        sequence: The number of the operation in its group.
        peer: The other rank of a send or a receive.
        in_split: Input elements for each rank of an all_to_all; empty for equal parts; absent where not stated in full.
        out_split: Output elements from each rank, likewise.
    """

    operation: str
    group: str
    group_size: int | None
    dtype: str
    in_elements: int | None
    out_elements: int | None
    sequence: int | None
    peer: int | None
    in_split: tuple[int, ...] | None = None
    out_split: tuple[int, ...] | None = None


class ProcessGroup(Struct, frozen=True, array_like=True):
    """A process group that the trace describes.

    ``description`` is ``default_pg``, ``TENSOR_MODEL_PARALLEL_GROUP`` and so on; ``""`` or ``undefined`` where not
    given. ``ranks`` are empty where not listed.
    """

    name: str
    description: str
    size: int
    ranks: tuple[int, ...]


class Trace(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """One trace file.

    Attributes:
        rank, world_size: Absent where nothing states them.
        host, backend: The machine, and the backend of torch.distributed; ``""`` where not stated.
        devices: Names of the GPUs of the machine by index; empty on a CPU.
        base_ns: What the exporter adds to ``start_ns`` to get wall-clock time.
        operators: Operators of the framework; empty unless they were requested.
        axes: The ranks with which its rank shares each axis of parallelism, and itself; empty where not stated.
        collectives: The profiler's metadata of communication kernels.
        in_operators: When threads were inside operators; absent unless they or the operators were requested.
        callers: Operators that may wait for the device, and the script's own functions where stacks were recorded;
            empty unless they were requested.
        frames: Python functions as they ran; absent unless they were requested, empty without recorded stacks.
        products: Matrix products; absent unless they were requested.
        activities: What its times are of: ``operators`` (a window that recorded them), ``light`` (one that recorded
            kernels and their launches alone), or ``""`` where the trace does not say so.
        processors: Multiprocessors of a GPU; 0 where not stated.
        details: Row by row what is known of the operators besides; absent unless it was requested.
        without_twin: Device events of the marked steps of two windows that only the light one has: nothing tells what
            caused them.
        damage: What is lost or doubtful, as sentences.
    """

    path: str
    rank: int | None
    world_size: int | None
    host: str
    backend: str
    devices: tuple[str, ...]
    base_ns: int
    names: tuple[str, ...]
    device: DeviceEvents
    calls: HostSpans
    annotations: HostSpans
    operators: HostSpans
    groups: Mapping[str, ProcessGroup] = field(default_factory=dict)
    axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    collectives: tuple[Collective, ...] = ()
    in_operators: ThreadSpans | None = None
    callers: HostSpans = field(default_factory=no_spans)
    frames: HostSpans | None = None
    products: Products | None = None
    activities: str = ""
    processors: int = 0
    details: OperatorDetails | None = None
    without_twin: int = 0
    damage: tuple[str, ...] = ()

    @cached_property
    def launch(self) -> Int64:
        """For each device event the row of ``calls`` that launched it, or ABSENT.

        Where calls share a correlation, the first one counts. Several processes in one file count alike: there a
        stream's events belong to the process whose calls come before most of them, at the shortest distance.
        """
        calls, device = self.calls, self.device
        processes = distinct(calls.process[calls.correlation != ABSENT])
        if len(processes) > 1:
            return _join_by_process(device, calls, processes)
        return join(device.correlation, calls.correlation)

    @cached_property
    def process(self) -> int:
        """The id of the process that was profiled, or ABSENT; the windows of one run have the same."""
        return next(
            (int(spans.process[0]) for spans in (self.calls, self.annotations, self.operators) if len(spans)), ABSENT
        )

    @cached_property
    def steps(self) -> HostSpans:
        """The annotations ``ProfilerStep#N``, in the order of their start."""
        return self.annotated(STEP_MARK)

    @cached_property
    def operator_name(self) -> Int64:
        """For each device event the name of the innermost operator around its launch, or ABSENT."""
        row = join(self.device.external_id, self.operators.external_id)
        return np.append(self.operators.name.astype(np.int64), ABSENT)[row]

    def named(self, pattern: re.Pattern[str]) -> Bool:
        """Which of its names a pattern finds."""
        return np.array([bool(pattern.search(name)) for name in self.names], np.bool_)

    def called(self, pattern: re.Pattern[str]) -> Bool:
        """Which calls have a name that a pattern finds."""
        return np.asarray(self.named(pattern)[self.calls.name], np.bool_)

    def annotated(self, prefix: str) -> HostSpans:
        """The annotations whose name starts with a prefix, in the order of their start."""
        matching = np.array([name.startswith(prefix) for name in self.names], np.bool_)
        return self.annotations.take(matching[self.annotations.name])

    def name_of(self, index: int) -> str:
        """The text of one entry of a name column."""
        return self.names[index]

    @cached_property
    def step(self) -> Int64:
        """For each device event the row of ``steps`` in which it was launched, or ABSENT.

        A step's kernels run on after the host has left it: the launch decides, not the time of the kernel.
        """
        launch = self.launch
        launched_ns = self.calls.start_ns[launch] if len(self.calls) else np.zeros(len(launch), np.int64)
        steps = self.steps
        step = np.where(launch == ABSENT, ABSENT, span_at(steps, launched_ns))
        processes = distinct(steps.process)
        if len(processes) > 1 and len(self.calls):
            of_launch = self.calls.process[launch]
            for process in processes:
                rows = np.flatnonzero(steps.process == process)
                mine = (launch != ABSENT) & (of_launch == process)
                within = span_at(steps.take(rows), launched_ns[mine])
                step[mine] = np.where(within == ABSENT, ABSENT, rows[within])
        return step


def join(keys: Int64, table: Int64) -> Int64:
    """For each key the first row of a table that holds it, or ABSENT; an ABSENT key joins nothing."""
    if not len(table):
        return np.full(len(keys), ABSENT, np.int64)
    order = np.argsort(table, kind="stable")
    ordered = table[order]
    index = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return np.where((ordered[index] == keys) & (keys != ABSENT), order[index], ABSENT)


def _join_by_process(device: DeviceEvents, calls: HostSpans, processes: list[int]) -> Int64:
    """For each device event the call that launched it, where the calls of several processes share correlations."""
    candidates = np.stack([_join_within(device.correlation, calls, process) for process in processes])
    latency_ns = device.start_ns - calls.start_ns[candidates]
    is_before = (candidates != ABSENT) & (latency_ns >= 0)
    launch = np.full(len(device), ABSENT, np.int64)
    for gpu in distinct(device.device):
        for stream in distinct(device.stream[device.device == gpu]):
            rows = np.flatnonzero((device.device == gpu) & (device.stream == stream))
            before = is_before[:, rows]
            total_ns = np.where(before, latency_ns[:, rows], 0).sum(axis=1)
            best = min(range(len(processes)), key=lambda row: (-int(before[row].sum()), int(total_ns[row])))
            launch[rows] = candidates[best, rows]
    return launch


def _join_within(keys: Int64, calls: HostSpans, process: int) -> Int64:
    rows = np.flatnonzero(calls.process == process)
    within = join(keys, calls.correlation[rows])
    return np.where(within == ABSENT, ABSENT, rows[within])


def joined(*tables: HostSpans) -> HostSpans:
    """The rows of several tables, in the order of their start."""
    columns = [np.concatenate([getattr(table, name) for table in tables]) for name in HostSpans.__struct_fields__]
    spans = HostSpans(*columns)
    return spans.take(np.argsort(spans.start_ns, kind="stable"))


def distinct(values: Int64 | Int32) -> list[int]:
    """The different values of a column, in order."""
    ordered = np.sort(values)  # np.unique would first import the masked arrays, which takes longer
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    found: list[int] = ordered[is_first].tolist()
    return found


def span_at(spans: HostSpans, moments_ns: Int64) -> Int64:
    """For each moment the last-begun span that covers it (its end excluded), or ABSENT; for spans that do not nest."""
    if not len(spans):
        return np.full(len(moments_ns), ABSENT, np.int64)
    row = np.searchsorted(spans.start_ns, moments_ns, side="right") - 1
    is_covered = (row >= 0) & (moments_ns < spans.end_ns[np.maximum(row, 0)])
    return np.where(is_covered, row, ABSENT)


def frame(trace: Trace, table: TimedRows) -> pd.DataFrame:
    """One table of a trace as a pandas DataFrame, with names spelled out."""
    columns = {name: getattr(table, name) for name in table.__struct_fields__}
    columns["name"] = np.array(trace.names, np.object_)[table.name]
    return to_frame(columns)
