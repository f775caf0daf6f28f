"""What a rank's device ran, in the order of launch, with what a pipeline needs to know of each event.

A step's work is told by its launch, and so is whether it is forward or backward: backward kernels are launched on the
autograd engine's own thread. Transfers between stages are NCCL's SendRecv kernels; they spin until
the other side is there, so they are waiting and never work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, HostSpans, Trace, Work, span_at

_SENDS = re.compile(r"SendRecv|sendrecv")
_POINT_TO_POINT = {"", "send", "recv", "coalesced"}
_PIPELINE = re.compile(r"pipeline|(^|_)(pp|pipe)(_|$)", re.IGNORECASE)
#: A group that joins stages and more is no pipeline: Megatron's EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP.
_AND_MORE = re.compile(r"tensor|expert|data|context", re.IGNORECASE)
_SPLITS_DATA = re.compile(r"data|(^|_)dp(_|$)", re.IGNORECASE)
_SPLITS_LAYERS = re.compile(r"tensor|context|expert|sequence|(^|_)(tp|cp|ep|sp)(_|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
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
    return _PIPELINE.search(description) is not None and _AND_MORE.search(description) is None


def launched(trace: Trace) -> Launched:
    """The device events of a trace whose launch is known and comes from the training script or the autograd engine."""
    call = trace.launch
    rows = np.flatnonzero(call != ABSENT)
    device = trace.device
    launch_ns = trace.calls.start_ns[call[rows]]
    rows = rows[np.lexsort((device.start_ns[rows], launch_ns))]
    call = call[rows]
    main, engines = _engines_threads(trace, rows, trace.calls.thread[call], _transfers(trace)[rows])
    kept = (trace.calls.thread[call] == main) | np.isin(trace.calls.thread[call], engines)
    rows, call = rows[kept], call[kept]
    launch_ns = trace.calls.start_ns[call]
    return Launched(
        name=device.name[rows].astype(np.int64),
        start_ns=device.start_ns[rows],
        end_ns=device.end_ns[rows],
        launch_ns=launch_ns,
        step=span_at(steps_of(trace), launch_ns),
        is_transfer=_transfers(trace)[rows],
        is_backward=trace.calls.thread[call] != main,
        is_communication=device.is_work(Work.COMMUNICATION)[rows],
        splits_layers=_of_layers(trace)[rows],
        collective=device.collective[rows],
    )


def steps_of(trace: Trace) -> HostSpans:
    """The training steps: the profiler's, else from one optimizer step's end to the next one's, else all as one."""
    if len(trace.steps):
        return trace.steps
    ends = np.unique(trace.annotated("Optimizer.step#").end_ns)
    tables = [table.start_ns for table in (trace.calls, trace.annotations) if len(table)]
    if not tables:
        return trace.steps
    times = np.concatenate(tables)
    edges = np.unique(np.concatenate([[times.min()], ends, [times.max() + 1]])).astype(np.int64)
    count = len(edges) - 1
    absent = np.full(count, ABSENT, np.int64)
    return HostSpans(absent.astype(np.int32), edges[:-1], np.diff(edges), absent, absent, absent, absent)


def step_labels(trace: Trace) -> tuple[str, ...]:
    """A name for each of the steps: the profiler's number, or their place in the trace."""
    if not len(trace.steps):
        return tuple(str(place) for place in range(len(steps_of(trace))))
    return tuple(trace.names[name].partition("#")[2] for name in trace.steps.name)


def _transfers(trace: Trace) -> Bool:
    named = np.array([_SENDS.search(name) is not None for name in trace.names], np.bool_)
    is_pipeline = np.array(
        [
            one.operation.lower() in _POINT_TO_POINT and not _of_layer_group(_description(trace, one.group))
            for one in trace.collectives
        ]
        + [True],  # the last entry is what ABSENT picks: torch.distributed.pipelining names nothing
        np.bool_,
    )
    return np.asarray(named[trace.device.name] & is_pipeline[trace.device.collective])


def _of_layers(trace: Trace) -> Bool:
    splits = [_of_layer_group(_description(trace, one.group)) for one in trace.collectives]
    return np.asarray(np.array([*splits, False], np.bool_)[trace.device.collective])


def _of_layer_group(description: str) -> bool:
    return _SPLITS_LAYERS.search(description) is not None and _SPLITS_DATA.search(description) is None


def _description(trace: Trace, group: str) -> str:
    return trace.groups[group].description if group in trace.groups else ""


def _engines_threads(trace: Trace, rows: Int64, thread: Int64, is_transfer: Bool) -> tuple[int, Int64]:
    """The training script's thread, and those of the autograd engine: the other ones that launch computation.

    The engine runs the backward pass of a GPU on a thread of its own. Loaders and savers have threads too, which launch
    copies.
    """
    main = _most_frequent(thread[is_transfer] if is_transfer.any() else thread)
    return main, np.unique(thread[(thread != main) & (trace.device.work[rows] == Work.COMPUTE)])


def _most_frequent(values: Int64) -> int:
    if not len(values):
        return ABSENT
    each, counts = np.unique(values, return_counts=True)
    return int(each[np.argmax(counts)])
