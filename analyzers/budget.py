"""What a step's time is made of, kernel by kernel and cause by cause: what ``perfscope compare`` compares.

Unlike ``breakdown`` it counts the time between steps, and it names the kernels, axes, copies and causes. Each moment of
a step belongs to one of them: the terms add up to the step exactly.

A device's step period runs from the end of the previous step's last device event to the end of this step's last device
event. It includes gaps between steps, and it holds while the host runs ahead. The first marked step is left out where
the trace contains no earlier event. If it is the only step, it begins with its first event. A moment of compute belongs
to the kernel that began first. Without compute it belongs to the most urgent axis that communicates, then to a copy.
The rest is idle, by cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Struct

from perfscope.analyzers.overlap import members_by_group
from perfscope.constants import NS_PER_US
from perfscope.errors import NoDevice
from perfscope.measures.idle_gaps import gaps_of_device
from perfscope.measures.marked_steps import step_number
from perfscope.measures.parts import CAUSES
from perfscope.report import MOST_ROWS, Section, percent_of
from perfscope.result import MS_OF_NS, Column, Doc, Figures, InUnit, Result, Table, figure
from perfscope.tables.columns import Float64, Int64
from perfscope.tables.intervals import covered, union
from perfscope.tables.kernel_classes import short_name
from perfscope.tables.trace import ABSENT, Trace, Work, distinct

COMPUTE, COMMUNICATION, COPY, IDLE = "compute", "exposed communication", "exposed copy", "idle"
#: The order of kinds where terms are equally large.
KINDS = (COMPUTE, COMMUNICATION, COPY, IDLE)


class Term(NamedTuple):
    """A part of a step, in names that two runs have in common: the kernel or operator, axis, copy, or idle cause.

    ``operator`` launched the kernel; it is empty where the trace does not say so, or it was not read.
    """

    kind: str
    name: str = ""
    operator: str = ""

    @property
    def title(self) -> str:
        """Its name for a table, with the operator where it is known."""
        return f"{short_name(self.operator)}: {short_name(self.name)}" if self.operator else short_name(self.name)


class StepBudget(Struct, frozen=True, array_like=True, eq=False):
    """The budget of each step of one device; ``terms`` add up to ``period_ns`` exactly.

    ``steps`` is empty where none is marked, for the whole window. ``calls`` are events of the device in all steps.
    """

    device: int
    trace: str
    activities: str
    steps: tuple[int, ...]
    period_ns: Int64
    terms: dict[Term, Int64]
    calls: dict[Term, int]

    def __post_init__(self) -> None:
        total = sum(self.terms.values(), np.zeros(len(self.period_ns), np.int64))
        if (total != self.period_ns).any():
            raise AssertionError(f"{self.trace}: the terms of a step do not add up to it: {total} {self.period_ns}")


class TermTime(Figures, frozen=True):
    """A term of the budget of a mean step."""

    kind: Annotated[str, Doc("What kind of time: compute, communication, idle and so on.")]
    name: Annotated[str, Doc("The kernel, the axis, the copy, or the cause; empty where the kind says all.")]
    operator: Annotated[str | None, Doc("The operator that launched it, where they were read.")]
    title: str
    ns: int
    us = InUnit("ns", NS_PER_US, "Mean over ranks and steps.")


class Budget(Result, frozen=True):
    """``results.budget``: what a mean step is made of; the terms add up to it exactly.

    ``calls`` are events of the device a step and rank, of the terms that have any.
    """

    times: Mapping[Term, int]
    calls: Mapping[Term, float]
    period_ns: Float64
    steps: Annotated[tuple[int, ...], Doc("The numbers of the steps; empty where none is marked.")]
    ranks: Annotated[int, Doc("Devices that the means are over.")]
    activities: str
    step_us = InUnit("step_ns", NS_PER_US, "The mean step over ranks and steps.")

    TABLES = (
        Table(
            "Budget of a step",
            "",
            (
                Column("Term", lambda row: row[0].kind),
                Column("Name", lambda row: row[0].title),
                Column("Per step (ms)", lambda row: row[0].ns, MS_OF_NS, 3),
                Column("Of the step (%)", lambda row: percent_of(row[0].ns, row[1])),
            ),
        ),
    )

    @property
    def step_ns(self) -> int:
        """The mean step: the sum of its terms."""
        return sum(self.times.values())

    @figure
    def terms(self) -> tuple[TermTime, ...]:
        """Each term, the largest first."""
        ordered = sorted(self.times.items(), key=lambda item: (-item[1], KINDS.index(item[0].kind), item[0]))
        return tuple(TermTime(term.kind, term.name, term.operator or None, term.title, ns) for term, ns in ordered)

    def sections(self) -> tuple[Section, ...]:
        """The terms, the largest first."""
        steps = f"{len(self.steps)} marked steps" if self.steps else "the whole window"
        note = (
            f"Means over {steps} and {self.ranks} ranks; the terms add up to the step exactly. A step lasts from the "
            "end of the work of the step before to the end of its own."
        )
        (table,) = self.TABLES
        return (table.section([(term, self.step_ns) for term in self.terms], (note,), most=MOST_ROWS),)


def measure(trace: Trace) -> tuple[StepBudget, ...] | None:
    """The budgets of one trace's devices; None where it contains no device events."""
    if not len(trace.device):
        return None
    return tuple(_measure_device(trace, device) for device in distinct(trace.device.device))


def _measure_device(trace: Trace, device: int) -> StepBudget:
    rows = np.flatnonzero(trace.device.device == device)
    numbers, starts, ends = _find_steps(trace, rows)
    terms: dict[Term, Int64] = {}
    calls: Counter[Term] = Counter()
    for term, times, count in _terms(trace, device, rows, starts, ends):
        if times.any() or count:
            terms[term] = terms.get(term, np.zeros(len(starts), np.int64)) + times
            calls[term] += count
    return StepBudget(device, trace.path, trace.activities, numbers, ends - starts, terms, dict(+calls))


def _find_steps(trace: Trace, rows: Int64) -> tuple[tuple[int, ...], Int64, Int64]:
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


def _terms(trace: Trace, device: int, rows: Int64, starts: Int64, ends: Int64) -> Iterator[tuple[Term, Int64, int]]:
    events = trace.device

    def count(members: Int64) -> int:
        return int(((events.start_ns[members] >= starts[0]) & (events.start_ns[members] < ends[-1])).sum())

    computing = rows[events.is_work(Work.COMPUTE, Work.FUSED)[rows]]
    # The part of each kernel after the ends of all that began before it; it may be empty.
    reach = np.maximum.accumulate(events.end_ns[computing])
    begins = np.maximum(events.start_ns[computing], np.append(events.start_ns[computing[:1]], reach[:-1]))
    stops = np.maximum(begins, events.end_ns[computing])
    operators = trace.operator_name
    keys = events.name[computing].astype(np.int64) * (len(trace.names) + 1) + operators[computing] + 1
    order = np.argsort(keys, kind="stable")
    for first, last in pairwise(np.flatnonzero(np.diff(keys[order], prepend=-1, append=-1)).tolist()):
        members = order[first:last]
        event = computing[members[0]]
        operator = "" if operators[event] == ABSENT else trace.names[operators[event]]
        times = union(begins[members], stops[members]).measure_within(starts, ends)
        yield Term(COMPUTE, trace.names[events.name[event]], operator), times, count(computing[members])
    accounted = covered(events, computing)
    for axis, is_member in members_by_group(trace, device):
        communication = covered(events, is_member)
        times = (communication - accounted).measure_within(starts, ends)
        yield Term(COMMUNICATION, axis or "axis not stated"), times, count(np.flatnonzero(is_member))
        accounted = accounted | communication
    copying = rows[events.work[rows] == Work.COPY]
    for name in distinct(events.name[copying]):
        members = copying[events.name[copying] == name]
        copies = covered(events, members)
        yield Term(COPY, trace.names[name]), (copies - accounted).measure_within(starts, ends), count(members)
        accounted = accounted | copies
    # A step ends with an event, so that no gap is cut.
    of_causes = gaps_of_device(trace, device).within(starts, ends)
    for row, cause in enumerate(CAUSES):
        yield Term(IDLE, cause.replace("_", " ")), of_causes[row], 0


def analyze(partials: Sequence[tuple[StepBudget, ...]]) -> Budget:
    """The mean budget of the steps that all ranks have; of all steps where they have none in common."""
    budgets = [budget for partial in partials for budget in partial]
    if not budgets:
        raise NoDevice("the traces contain no GPU events")
    common = set.intersection(*(set(budget.steps) for budget in budgets))
    numbers = sorted(common) or sorted({number for budget in budgets for number in budget.steps or (ABSENT,)})
    place = {number: index for index, number in enumerate(numbers)}
    counts = np.zeros(len(numbers), np.int64)
    sums: dict[Term, Int64] = {}
    calls: Counter[Term] = Counter()
    for budget in budgets:
        steps = budget.steps or (ABSENT,)
        rows = [row for row, number in enumerate(steps) if number in place]
        places = [place[steps[row]] for row in rows]
        np.add.at(counts, places, 1)
        for term, times in budget.terms.items():
            np.add.at(sums.setdefault(term, np.zeros(len(numbers), np.int64)), places, times[rows])
        calls.update(budget.calls)
    terms = sorted(sums)
    means = apportion([int(sums[term].sum()) for term in terms], int(counts.sum()))
    measured_steps = sum(len(budget.steps) or 1 for budget in budgets)
    return Budget(
        times={term: mean for term, mean in zip(terms, means, strict=True) if mean},
        calls={term: count / measured_steps for term, count in calls.items()},
        period_ns=sum(sums.values(), np.zeros(len(numbers), np.int64)) / counts,
        steps=tuple(number for number in numbers if number != ABSENT),
        ranks=len(budgets),
        activities=budgets[0].activities,
    )


def apportion(totals: Sequence[int], count: int) -> list[int]:
    """Each total over a count as a whole number, so that they add up to the whole over the count, rounded down.

    >>> apportion([5, 5, 1], 2)
    [2, 3, 0]
    """
    edges = [total // count for total in accumulate(totals, initial=0)]
    return [after - before for before, after in pairwise(edges)]
