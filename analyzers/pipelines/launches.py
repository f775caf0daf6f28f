"""The device events of a rank in the order of launch, each with its step and its role in the pipeline.

The launch of a kernel decides which step it belongs to and whether it is part of a backward pass: the autograd engine
launches those from a thread of its own. Transfers between stages are NCCL's SendRecv kernels; they spin until the peer
is ready, so they are waiting time and never work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, HostSpans, Trace, Work, span_at

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
