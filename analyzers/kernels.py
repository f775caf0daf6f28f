"""Which kernels the device spent its time in, by name and by the operator that launched them.

Times are sums over kernels, streams and ranks, so that kernels that run at once are each counted in full. The operator
is the innermost one that was running on the host when the kernel was launched; it needs the trace's operators, which
are read on request only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct

from perfscope.constants import NS_PER_US
from perfscope.errors import NoDevice
from perfscope.report import MOST_ROWS, Section, percent_of
from perfscope.result import MS_OF_NS, PERCENT, Column, Doc, Figures, InUnit, Result, Table
from perfscope.tables.columns import Int64
from perfscope.tables.kernel_classes import looks_like_communication, short_name
from perfscope.tables.trace import ABSENT, Trace, Work, join

_NO_OPERATOR = "(no operator)"
#: Rows of times that are not added up, and the column of what never ran.
_SHORTEST, _LONGEST = 2, 3
_NOTHING = np.array([[0], [0], [np.iinfo(np.int64).max], [0]], np.int64)
_NO_TIMES = np.zeros((4, 0), np.int64)

_Key = TypeVar("_Key", bound="str | tuple[str, int]")


class Times(NamedTuple):
    """How often something ran and how long, in nanoseconds."""

    calls: int
    total: int
    shortest: int
    longest: int


class KernelTimes(Struct, frozen=True, eq=False, array_like=True):
    """The kernels of traces, and operators where read; times have a row for each field of Times, a column a name."""

    names: tuple[tuple[str, int], ...]
    times: Int64
    operators: tuple[str, ...] | None = None
    operator_times: Int64 | None = None

    def __post_init__(self) -> None:
        """Refuse columns that do not belong together, as of a stored partial that somebody made up."""
        columns = (self.operators or (), self.operator_times) if self.operator_times is not None else ((), _NO_TIMES)
        for names, times in ((self.names, self.times), columns):
            if times.shape != (len(Times._fields), len(names)):
                raise ValueError("times are not those of the names")


class LaunchTimes(Figures, frozen=True):
    """How often something ran, and how long."""

    name: Annotated[str, Doc("Its name.")]
    calls: Annotated[int, Doc("How often, over all ranks.")]
    total_ns: int
    fraction: Annotated[float | None, Doc("``total_us`` over that of all kernels.")]
    mean_us: Annotated[float, Doc("``total_us / calls``.")]
    min_us: Annotated[float, Doc("The shortest one.")]
    max_us: Annotated[float, Doc("The longest one.")]
    total_us = InUnit("total_ns", NS_PER_US, "How long; kernels that run at once are each counted in full.")


class KernelWork(LaunchTimes, frozen=True):
    """A kernel, copy or fill by name."""

    work: Annotated[str, Doc("``compute``, ``communication`` or ``copy``.")]


_TIMES = (
    Column("Calls", "calls"),
    Column("Total (ms)", "total_ns", MS_OF_NS, 2),
    Column("Share (%)", "fraction", PERCENT),
    Column("Mean (us)", "mean_us"),
    Column("Max (us)", "max_us"),
)


class Kernels(Result, frozen=True):
    """``results.kernels``: kernels by name and by the operator that launched them."""

    total_us: Annotated[float, Doc("Time of all of them.")]
    names: Annotated[tuple[KernelWork, ...], Doc("By name, the most expensive first.")]
    operators: Annotated[tuple[LaunchTimes, ...] | None, Doc("By the innermost operator that launched them.")]
    doubtful_us: Annotated[float, Doc("Time in kernels of compute whose names suggest communication.")]

    TABLES = (
        Table("Kernels", "names", (Column("Kernel", "name", short_name), Column("Work", "work"), *_TIMES)),
        Table("Kernels by operator", "operators", (Column("Operator", "name"), *_TIMES)),
    )

    def sections(self) -> tuple[Section, ...]:
        """The most expensive ones."""
        by_name, by_operator = self.TABLES
        sections = [by_name.section(self.names[:MOST_ROWS], self._notes())]
        if self.operators is not None:
            note = "`--only roofline` says how far operators are from what the GPU can do, where the trace has shapes."
            sections.append(by_operator.section(self.operators[:MOST_ROWS], [note]))
        return tuple(sections)

    def _notes(self) -> Iterator[str]:
        yield f"{len(self.names)} distinct names. Kernels that overlap in time are each counted in full."
        if self.doubtful_us:
            share = percent_of(self.doubtful_us, self.total_us)
            yield f"{share:.1f} % of the time is in kernels classified as compute whose names suggest communication."


def measure(trace: Trace) -> KernelTimes | None:
    """The kernels of one trace; None where it contains no device events."""
    device = trace.device
    if not len(device):
        return None
    keys = device.name.astype(np.int64) * len(Work) + device.work
    kinds, times = _times_by_key(keys, device.duration_ns)
    names, times = _in_order([(trace.names[kind // len(Work)], kind % len(Work)) for kind in kinds], times)
    if not len(trace.operators):
        return KernelTimes(names, times)
    return KernelTimes(names, times, *_operators(trace))


def merge(first: KernelTimes, second: KernelTimes) -> KernelTimes:
    """The kernels of both; the order does not matter."""
    names, times = _join(first.names, first.times, second.names, second.times)
    if first.operators is None or first.operator_times is None:
        return KernelTimes(names, times, second.operators, second.operator_times)
    if second.operators is None or second.operator_times is None:
        return KernelTimes(names, times, first.operators, first.operator_times)
    of_operators = _join(first.operators, first.operator_times, second.operators, second.operator_times)
    return KernelTimes(names, times, *of_operators)


def analyze(partials: Sequence[KernelTimes]) -> Kernels:
    """Put the kernels of all traces in order.

    Raises:
        NoDevice: No trace holds device events.
    """
    if not partials:
        raise NoDevice("the traces contain no GPU events")
    merged = reduce(merge, partials)
    names = tuple((name, Work(work), times) for (name, work), times in _by_total(merged.names, merged.times))
    whole = sum(times.total for _, _, times in names)
    operators = None
    if merged.operators is not None and merged.operator_times is not None:
        by_total = _by_total(merged.operators, merged.operator_times)
        operators = tuple(LaunchTimes(name, *_figures(times, whole)) for name, times in by_total)
    doubtful = sum(
        times.total for name, work, times in names if work == Work.COMPUTE and looks_like_communication(name)
    )
    return Kernels(
        total_us=whole / NS_PER_US,
        names=tuple(KernelWork(name, *_figures(times, whole), work.name.lower()) for name, work, times in names),
        operators=operators,
        doubtful_us=doubtful / NS_PER_US,
    )


def _figures(times: Times, whole: int) -> tuple[int, int, float | None, float, float, float]:
    return (
        times.calls,
        times.total,
        times.total / whole if whole else None,
        times.total / times.calls / NS_PER_US,
        times.shortest / NS_PER_US,
        times.longest / NS_PER_US,
    )


def _by_total(keys: Sequence[_Key], times: Int64) -> list[tuple[_Key, Times]]:
    listed = zip(keys, map(Times._make, times.T.tolist()), strict=True)
    return sorted(listed, key=lambda item: (-item[1].total, item[0]))


def _in_order(keys: Sequence[_Key], times: Int64) -> tuple[tuple[_Key, ...], Int64]:
    """Different keys in order with their times: those of two ranks that launch the same are the same."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return tuple(keys[column] for column in order), np.ascontiguousarray(times[:, order])


def _join(
    first: tuple[_Key, ...], first_times: Int64, second: tuple[_Key, ...], second_times: Int64
) -> tuple[tuple[_Key, ...], Int64]:
    if first == second:
        return first, _add(first_times, second_times)
    column_of = {key: column for column, key in enumerate(first)}
    keys = (*first, *(key for key in second if key not in column_of))
    column_of.update((key, column) for column, key in enumerate(keys[len(first) :], len(first)))
    columns = [column_of[key] for key in second]
    times = np.repeat(_NOTHING, len(keys), axis=1)
    times[:, : len(first)] = first_times
    times[:, columns] = _add(times[:, columns], second_times)
    return _in_order(keys, times)


def _add(first: Int64, second: Int64) -> Int64:
    times = first + second
    np.minimum(first[_SHORTEST], second[_SHORTEST], out=times[_SHORTEST])
    np.maximum(first[_LONGEST], second[_LONGEST], out=times[_LONGEST])
    return times


def _operators(trace: Trace) -> tuple[tuple[str, ...], Int64]:
    """Times of the device events by the operator that has their external id."""
    row = join(trace.device.external_id, trace.operators.external_id)
    names = np.append(trace.operators.name.astype(np.int64), ABSENT)[row]
    numbers, times = _times_by_key(names, trace.device.duration_ns)
    return _in_order([_NO_OPERATOR if number == ABSENT else trace.names[number] for number in numbers], times)


def _times_by_key(keys: Int64, duration_ns: Int64) -> tuple[list[int], Int64]:
    order = np.argsort(keys, kind="stable")
    distinct, begins, calls = np.unique(keys[order], return_index=True, return_counts=True)
    ordered = duration_ns[order]
    totals, shortest, longest = (aggregate.reduceat(ordered, begins) for aggregate in (np.add, np.minimum, np.maximum))
    return distinct.tolist(), np.array([calls, totals, shortest, longest], np.int64)
