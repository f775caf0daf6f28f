"""Analyzer: what a step's time is made of, kernel by kernel and cause by cause; the terms add up to the step exactly.

It is what ``perfscope compare`` compares. Unlike ``breakdown`` it counts the time between steps, and it names the
kernels, axes, copies and causes: each moment of a step belongs to one of them.

A device's step period runs from the end of the previous step's last device event to the end of this step's last device
event. It includes gaps between steps, and it holds while the host runs ahead. The first marked step is left out where
the trace contains no earlier event. If it is the only step, it begins with its first event. A moment of compute belongs
to the kernel that began first. Without compute it belongs to the most urgent axis that communicates, then to a copy.
The rest is idle, by cause.

In a trace without device events, a host's step lasts from its mark to the next one. Compute belongs to the operator
that began first: the outermost one, and across threads the earliest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from perfscope.analyzers.budget.result import Budget, mean_budget
from perfscope.analyzers.budget.terms import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    IDLE,
    LOADING,
    OTHER,
    Kernel,
    Launches,
    Operation,
    StepBudget,
    Term,
)
from perfscope.analyzers.host import computing_operators, host_intervals
from perfscope.analyzers.overlap import members_by_group
from perfscope.analyzers.shared.idle_gaps import gaps_of_device
from perfscope.analyzers.shared.intervals import Intervals, covered, union
from perfscope.analyzers.shared.marked_steps import step_number
from perfscope.analyzers.shared.parts import CAUSES
from perfscope.errors import MissingInput
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, DeviceEvents, Trace, Work, distinct, join

_PER_MILLE = 1000
_GRID_BITS = 33


def measure_device(trace: Trace, device: int) -> StepBudget:
    """The budget of the steps of one device."""
    rows = np.flatnonzero(trace.device.device == device)
    numbers, starts, ends = _find_steps(trace, rows)
    terms: dict[Term, Int64] = {}
    for term, times in _terms(trace, device, rows, starts, ends):
        if times.any():
            terms[term] = terms[term] + times if term in terms else times
    return StepBudget(
        rank=trace.rank,
        device=device,
        trace=trace.path,
        activities=trace.activities,
        steps=numbers,
        period_ns=ends - starts,
        terms=terms,
        kernels=_kernels(trace, rows, numbers),
        operations=_operations(trace),
    )


def _find_steps(trace: Trace, rows: Int64) -> tuple[tuple[int, ...], Int64, Int64]:
    """The numbers of the steps that are counted, when each begins and ends."""
    events, step = trace.device, trace.step[rows]
    marks = distinct(step[step != ABSENT])
    if not marks:
        bounds = np.array([events.start_ns[rows].min(), events.end_ns[rows].max()])
        return (), bounds[:1], bounds[1:]
    ends = np.maximum.accumulate([events.end_ns[rows[step == mark]].max() for mark in marks])
    numbers = [step_number(trace.names[trace.steps.name[mark]]) for mark in marks]
    first = rows[step == marks[0]]
    before = rows[(step == ABSENT) & (events.start_ns[rows] < events.start_ns[first].min())]
    if len(before):
        edges = np.insert(ends, 0, min(events.end_ns[before].max(), ends[0]))
    elif len(marks) > 1:
        edges, numbers = ends, numbers[1:]
    else:
        edges = np.insert(ends, 0, events.start_ns[first].min())
    return tuple(numbers), edges[:-1], edges[1:]


def _terms(trace: Trace, device: int, rows: Int64, starts: Int64, ends: Int64) -> Iterator[tuple[Term, Int64]]:
    """Each term's time in each step; a term may come more than once."""
    events = trace.device
    computing = rows[events.is_work(Work.COMPUTE, Work.FUSED)[rows]]
    yield from _compute_terms(trace, computing, starts, ends)
    accounted = covered(events, computing)
    for group, members in members_by_group(trace, device):
        communication = covered(events, members)
        axis = Term(COMMUNICATION, group.axis or "axis not stated")
        yield axis, (communication - accounted).measure_within(starts, ends)
        accounted = accounted | communication
    copying = rows[events.work[rows] == Work.COPY]
    for name in distinct(events.name[copying]):
        copies = covered(events, copying[events.name[copying] == name])
        yield Term(COPY, trace.names[name]), (copies - accounted).measure_within(starts, ends)
        accounted = accounted | copies
    # A step ends with an event, so that no gap is cut.
    of_causes = gaps_of_device(trace, device).within(starts, ends)
    for row, cause in enumerate(CAUSES):
        yield Term(IDLE, cause.replace("_", " ")), of_causes[row]


def _compute_terms(trace: Trace, rows: Int64, starts: Int64, ends: Int64) -> Iterator[tuple[Term, Int64]]:
    """The time of each kernel that no kernel covers which began before it."""
    events = trace.device
    own = _without_earlier(events, rows)
    operators = _operator_names(trace)
    keys = events.name[rows].astype(np.int64) * (len(trace.names) + 1) + operators[rows] + 1
    order = np.argsort(keys, kind="stable")
    bounds = np.flatnonzero(np.diff(keys[order], prepend=-1, append=-1))
    for first, behind in pairwise(bounds.tolist()):
        members = order[first:behind]
        pieces = Intervals(own.start[members], own.end[members])
        event = rows[members[0]]
        operator = "" if operators[event] == ABSENT else trace.names[operators[event]]
        yield Term(COMPUTE, trace.names[events.name[event]], operator), _within(pieces, starts, ends)


def _without_earlier(events: DeviceEvents, rows: Int64) -> Intervals:
    """For each event, in the order of start, the part of it behind the ends of all before it; it may be empty."""
    start, end = events.start_ns[rows], events.end_ns[rows]
    reach = np.maximum.accumulate(end)
    before = np.concatenate([start[:1], reach[:-1]]) if len(rows) else reach
    begins = np.maximum(start, before)
    return Intervals(begins, np.maximum(begins, end))


def _within(pieces: Intervals, starts: Int64, ends: Int64) -> Int64:
    """How much of pieces that share no moment lies in each step."""
    return union(pieces.start, pieces.end).measure_within(starts, ends)


def _operator_names(trace: Trace) -> Int64:
    """For each device event the name of the operator that launched it, or ABSENT."""
    if not len(trace.operators):
        return np.full(len(trace.device), ABSENT, np.int64)
    row = join(trace.device.external_id, trace.operators.external_id)
    return np.append(trace.operators.name.astype(np.int64), ABSENT)[row]


def _kernels(trace: Trace, rows: Int64, numbers: tuple[int, ...]) -> dict[Kernel, Launches]:
    """The kernels of the counted steps, or of the window where no step is marked."""
    events, step = trace.device, trace.step[rows]
    if numbers:
        row_of = {step_number(trace.names[name]): row for row, name in enumerate(trace.steps.name)}
        rows = rows[np.isin(step, [row_of[number] for number in numbers])]
    keys = (events.name[rows].astype(np.int64) << _GRID_BITS) | (events.grid[rows] + 1)
    kinds, inverse, calls = np.unique(keys, return_inverse=True, return_counts=True)
    totals = np.zeros(len(kinds), np.int64)
    np.add.at(totals, inverse, events.duration_ns[rows])
    return {
        Kernel(trace.names[kind >> _GRID_BITS], (kind & ((1 << _GRID_BITS) - 1)) - 1): Launches(count, total)
        for kind, count, total in zip(kinds.tolist(), calls.tolist(), totals.tolist(), strict=True)
    }


def _operations(trace: Trace) -> dict[Operation, int]:
    """Matrix products a step, times 1000; a call that contains another one is that one."""
    if trace.products is None:
        return {}
    calls = trace.products.calls
    is_outer = np.zeros(len(calls) + 1, np.bool_)
    is_outer[calls.parent] = True  # ABSENT takes the last
    counts = np.bincount(calls.product[~is_outer[:-1]], minlength=len(trace.products.products)).tolist()
    steps = trace.products.steps or len(trace.steps) or 1
    operations: dict[Operation, int] = {}
    for product, count in zip(trace.products.products, counts, strict=True):
        if count and product.shapes:
            operation = Operation(product.operator, product.shapes, product.elements)
            operations[operation] = operations.get(operation, 0) + count * _PER_MILLE // steps
    return operations


def measure_host(trace: Trace) -> StepBudget | None:
    """The budget of one rank's host; None where its trace has no operators."""
    if not len(trace.operators):
        return None
    numbers, starts, ends = _find_host_steps(trace)
    compute, communication, loading = host_intervals(trace)
    exposed = communication - compute
    terms: dict[Term, Int64] = {
        Term(COMMUNICATION, "host"): exposed.measure_within(starts, ends),
        Term(LOADING): loading.measure_within(starts, ends),
    }
    operators = computing_operators(trace)
    reach = np.maximum.accumulate(operators.end_ns)
    begins = np.maximum(operators.start_ns, np.concatenate([operators.start_ns[:1], reach[:-1]]))
    stops = np.maximum(begins, operators.end_ns)
    for name in distinct(operators.name):
        rows = operators.name == name
        pieces = union(begins[rows], stops[rows]) & compute
        terms[Term(COMPUTE, trace.names[name])] = pieces.measure_within(starts, ends)
    accounted = sum(terms.values(), np.zeros(len(starts), np.int64))
    terms[Term(OTHER)] = ends - starts - accounted
    return StepBudget(
        rank=trace.rank,
        device=None,
        trace=trace.path,
        activities=trace.activities,
        steps=numbers,
        period_ns=ends - starts,
        terms={term: times for term, times in terms.items() if times.any()},
        kernels={},
        operations={},
    )


def _find_host_steps(trace: Trace) -> tuple[tuple[int, ...], Int64, Int64]:
    steps = trace.steps
    if not len(steps):
        bounds = np.array([trace.operators.start_ns.min(), trace.operators.end_ns.max()])
        return (), bounds[:1], bounds[1:]
    numbers = tuple(step_number(trace.names[name]) for name in steps.name)
    return numbers, steps.start_ns, np.maximum(np.append(steps.start_ns[1:], steps.end_ns[-1]), steps.start_ns)


def measure(trace: Trace) -> tuple[StepBudget, ...] | None:
    """The budgets of one trace's devices, or of its host; None where it contains neither events nor operators."""
    if len(trace.device):
        return tuple(measure_device(trace, device) for device in distinct(trace.device.device))
    of_host = measure_host(trace)
    return None if of_host is None else (of_host,)


def analyze(partials: Sequence[tuple[StepBudget, ...]]) -> Budget:
    """The mean budget of all ranks.

    Raises:
        MissingInput: The traces contain nothing to measure, or some have device events and some have none.
    """
    budgets = [budget for partial in partials for budget in partial]
    if not budgets:
        raise MissingInput("the traces contain neither device events nor operators")
    if len({budget.device is None for budget in budgets}) > 1:
        raise MissingInput("some traces contain device events, and others none")
    return mean_budget(budgets)
