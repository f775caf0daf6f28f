"""What the operators of one trace did by shape: time, operations, bytes, and the use of tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.communication.bandwidth import bus_factor
from perfscope.analyzers.communication.calls import dtype_bytes, operation_named, size_of
from perfscope.analyzers.flops.byte_rules import count_bytes
from perfscope.analyzers.flops.counted_operators import count_operators
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.kernel_precision import UNNAMED, element_precision, product_precision
from perfscope.tables.operator_details import Inputs
from perfscope.tables.trace import ABSENT, Trace, Work, distinct, join

#: Data types that tensor cores multiply; fp32 products as they are do not run on them.
_ON_TENSOR_CORES = ("bf16", "fp16", "tf32", "fp8", "fp4", "16-bit")
_MOST_TENSORS = 4
_ATEN = "aten::"
NO_OPERATOR = "(no operator)"


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """The calls of one operator with inputs of the same shapes and types, or of one collective, of all steps.

    Attributes:
        operator: Its name.
        shapes: Its inputs in words: ``bf16 8192x2048, 2048x6144``; ``""`` where the trace does not state them.
        dtype: The data type that it computes in, as peaks are listed; ``""`` where it is not known.
        calls: How often it was called.
        kernels: Device events that it launched.
        device_ns: Their time.
        tensor_ns: The part of it in kernels that multiply on tensor cores, by their names.
        flops: Operations of all calls; 0 for those that only move data, absent where they cannot be counted.
        bytes: What all calls read and write at least, or move over a link; absent where it cannot be counted.
        moved_over_link: Whether the bytes are those of a collective, as nccl-tests counts busbw.
    """

    operator: str
    shapes: str
    dtype: str
    calls: int
    kernels: int
    device_ns: int
    tensor_ns: int
    flops: int | None
    bytes: int | None
    moved_over_link: bool = False


@dataclass(frozen=True, slots=True)
class RankWork:
    """The operators of one trace.

    Attributes:
        rank: The rank; absent where nothing states it.
        steps: How many marked steps it is of; 0 for the whole trace.
        device_name: The GPU; ``""`` where the trace does not state one.
        operators: The operators, those with the most time first.
        device_ns: Time of all kernels.
        has_shapes: Whether the trace states inputs of operators.
        graph_ns: Time of kernels in CUDA graphs, whose operators are not known.
        path: The trace.
    """

    rank: int | None
    steps: int
    device_name: str
    operators: tuple[OperatorWork, ...]
    device_ns: int
    has_shapes: bool
    graph_ns: int
    path: str


def measure_work(trace: Trace) -> RankWork | None:
    """The operators of a trace; None without device events."""
    if not len(trace.device):
        return None
    inside = trace.step != ABSENT if len(trace.steps) else np.ones(len(trace.device), np.bool_)
    computes = inside & trace.device.is_work(Work.COMPUTE, Work.FUSED)
    is_graph = np.array([name.endswith("GraphLaunch") for name in trace.names], np.bool_)
    launch = trace.launch
    in_graph = computes & (launch != ABSENT)
    if len(trace.calls):
        in_graph &= is_graph[trace.calls.name[np.maximum(launch, 0)]]
    operators = [*_work_by_operator(trace, np.flatnonzero(computes & ~in_graph))]
    operators += _work_by_collective(trace, inside & trace.device.is_work(Work.COMMUNICATION))
    return RankWork(
        rank=trace.rank,
        steps=len(distinct(trace.step[inside])) if len(trace.steps) else 0,
        device_name=next(iter(trace.devices), ""),
        operators=tuple(sorted(operators, key=lambda work: (-work.device_ns, work.operator, work.shapes))),
        device_ns=int(trace.device.duration_ns[inside].sum()),
        has_shapes=trace.details is not None and bool(trace.details.distinct_inputs),
        graph_ns=int(trace.device.duration_ns[in_graph].sum()),
        path=trace.path,
    )


def _owners(trace: Trace, rows: Int64) -> tuple[Int64, Int64]:
    """For each device event the operator that accounts for it, a row of ``Trace.operators`` or ABSENT; and its FLOPs.

    A kernel belongs to the operator around its launch whose operations are counted, else to the innermost one.
    """
    owner = join(trace.device.external_id[rows], trace.operators.external_id)
    counted = count_operators(trace)
    launch = trace.launch[rows]
    launched = np.flatnonzero(launch != ABSENT)
    calls = launch[launched]
    around = counted.around(trace.calls.start_ns[calls], trace.calls.thread[calls])
    is_counted = around != ABSENT
    owner[launched[is_counted]] = counted.rows[around[is_counted]]
    flops = np.full(len(trace.operators) + 1, ABSENT, np.int64)
    flops[counted.rows] = counted.flops
    return owner, flops


def _work_by_operator(trace: Trace, rows: Int64) -> Iterator[OperatorWork]:
    owner, flops = _owners(trace, rows)
    distinct_inputs = () if trace.details is None else trace.details.distinct_inputs
    nothing = np.full(len(trace.operators), ABSENT, np.int64)
    index = np.append(nothing if trace.details is None else trace.details.inputs, ABSENT)
    name = np.append(trace.operators.name.astype(np.int64), ABSENT)
    precisions = [product_precision(text) for text in trace.names]
    is_tensor = np.array([precision in _ON_TENSOR_CORES for precision in precisions], np.bool_)
    key = (name[owner] + 1) * (len(distinct_inputs) + 1) + index[owner] + 1
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[order], prepend=-1))
    groups: dict[tuple[str, str], list[OperatorWork]] = {}
    for members in np.split(order, begins[1:]) if len(order) else ():  # calls with the same name and inputs
        row, events = int(owner[members[0]]), rows[members]
        durations, kernels = trace.device.duration_ns[events], trace.device.name[events]
        calls = len(np.unique(owner[members])) if row != ABSENT else len(events)
        longest = int(kernels[int(durations.argmax())])
        inputs = distinct_inputs[int(index[row])] if index[row] != ABSENT else None
        operator = NO_OPERATOR if row == ABSENT else trace.names[trace.operators.name[row]]
        size = None if inputs is None else count_bytes(operator, inputs, trace.names[longest])
        counted = None if size is None else 0
        if row != ABSENT and flops[row] != ABSENT:
            counted = int(flops[row]) * calls
        work = OperatorWork(
            operator=operator.removeprefix(_ATEN),
            shapes="" if inputs is None else describe(inputs),
            dtype=_dtype(inputs, precisions[longest]),
            calls=calls,
            kernels=len(events),
            device_ns=int(durations.sum()),
            tensor_ns=int(durations[is_tensor[kernels]].sum()),
            flops=counted,
            bytes=None if size is None else size * calls,
        )
        groups.setdefault((work.operator, work.shapes), []).append(work)
    for alike in groups.values():
        yield _merge(alike)


def _merge(alike: list[OperatorWork]) -> OperatorWork:
    """Calls that differ in numbers alone, such as a seed, as one."""
    first = alike[0]

    def total(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return OperatorWork(
        operator=first.operator,
        shapes=first.shapes,
        dtype=first.dtype,
        calls=sum(work.calls for work in alike),
        kernels=sum(work.kernels for work in alike),
        device_ns=sum(work.device_ns for work in alike),
        tensor_ns=sum(work.tensor_ns for work in alike),
        flops=total([work.flops for work in alike]),
        bytes=total([work.bytes for work in alike]),
        moved_over_link=first.moved_over_link,
    )


def _dtype(inputs: Inputs | None, of_kernel: str | None) -> str:
    """What an operator computes in: as its kernel's name says, else as its first input's elements."""
    if of_kernel in ("tf32", "fp8", "fp4", "bf16", "fp16", "fp32", "fp64"):
        return of_kernel
    elements = [] if inputs is None else [tensor.element for tensor in inputs.tensors if tensor.element]
    found = element_precision(elements[0]) if elements else UNNAMED
    return "" if found == UNNAMED else found


def describe(inputs: Inputs) -> str:
    """The tensors of some inputs in words, their types where they change.

    >>> from perfscope.tables.operator_details import Tensor
    >>> describe(Inputs((Tensor((2, 3), (), "float"), None, Tensor((3,), (), "float")), ()))
    'fp32 2x3, 3'
    """
    words, before = [], ""
    tensors = inputs.tensors
    for tensor in tensors[:_MOST_TENSORS]:
        precision = element_precision(tensor.element) if tensor.element else ""
        kind = tensor.element.removeprefix("c10::") if precision == UNNAMED else precision
        size = "x".join(map(str, tensor.shape)) or "1"
        words.append(f"{kind} {size}" if kind != before and kind else size)
        before = kind
    more = len(tensors) - _MOST_TENSORS
    return ", ".join(words) + (f" and {more} more" if more > 0 else "")


def _work_by_collective(trace: Trace, chosen: Bool) -> Iterator[OperatorWork]:
    rows = np.flatnonzero(chosen)
    numbers = trace.device.collective[rows]
    totals: dict[tuple[str, str], list[OperatorWork]] = {}
    for number in distinct(numbers):
        events = rows[numbers == number]
        operation, shapes, moved = "(communication)", "", None
        if number != ABSENT:
            collective = trace.collectives[number]
            operation = operation_named(collective.operation)
            factor = bus_factor(operation, collective.group_size)
            size = size_of(operation, collective) if dtype_bytes(collective.dtype) else 0
            if size:
                moved = None if factor is None else int(factor * size * len(events))
                shapes = f"{collective.dtype} {size / 1e6:.1f} MB, {collective.group_size} ranks"
        durations = int(trace.device.duration_ns[events].sum())
        work = OperatorWork(
            operation, shapes, "", len(events), len(events), durations, 0, 0, moved, moved_over_link=True
        )
        totals.setdefault((operation, shapes), []).append(work)
    for alike in totals.values():
        yield _merge(alike)
