"""The budget of a host's steps, from a trace without device events: what it computed, waited for and loaded.

A step lasts from its mark to the next one. Compute belongs to the operator that began first, which is the outermost
one, and on several threads the one that was there first.
"""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.budget.terms import COMMUNICATION, COMPUTE, LOADING, OTHER, StepBudget, Term
from perfscope.analyzers.host import computing_operators, host_intervals
from perfscope.analyzers.shared.intervals import union
from perfscope.analyzers.shared.marked_steps import step_number
from perfscope.tables.columns import Int64
from perfscope.tables.trace import Trace, distinct


def measure_host(trace: Trace) -> StepBudget | None:
    """The budget of one rank's host; None where its trace has no operators."""
    if not len(trace.operators):
        return None
    numbers, starts, ends = _find_steps(trace)
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


def _find_steps(trace: Trace) -> tuple[tuple[int, ...], Int64, Int64]:
    steps = trace.steps
    if not len(steps):
        bounds = np.array([trace.operators.start_ns.min(), trace.operators.end_ns.max()])
        return (), bounds[:1], bounds[1:]
    numbers = tuple(step_number(trace.names[name]) for name in steps.name)
    return numbers, steps.start_ns, np.maximum(np.append(steps.start_ns[1:], steps.end_ns[-1]), steps.start_ns)
