"""Which kernels the device spent its time in, by name and by the operator that launched them.

Times are sums over kernels, streams and ranks, so that kernels that run at once are each counted in full. The operator
is the innermost one that was running on the host when the kernel was launched; it needs the trace's operators, which
are read on request only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Struct

from perfscope.constants import NS_PER_US
from perfscope.errors import NoDevice
from perfscope.report import MOST_ROWS, Section, percent_of
from perfscope.result import MS_OF_NS, PERCENT, Column, Doc, Figures, InUnit, Result, Table
from perfscope.tables.columns import Int64
from perfscope.tables.kernel_classes import looks_like_communication, short_name
from perfscope.tables.trace import ABSENT, Trace, Work

_NO_OPERATOR = "(no operator)"


class Times(NamedTuple):
    """How often something ran and how long, in nanoseconds."""

    calls: int
    total: int
    shortest: int
    longest: int


class KernelTimes(Struct, frozen=True, array_like=True):
    """The kernels of traces by work and name, and by operator, where these were read."""

    kernels: dict[int, dict[str, Times]]
    operators: dict[str, Times] | None = None


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
    kernels = {
        work: _times_by_name(trace, device.name[rows], device.duration_ns[rows])
        for work in np.unique(device.work).tolist()
        for rows in (device.work == work,)
    }
    if not len(trace.operators):
        return KernelTimes(kernels)
    return KernelTimes(kernels, _times_by_name(trace, trace.operator_name, device.duration_ns))


def _times_by_name(trace: Trace, names: Int64, duration_ns: Int64) -> dict[str, Times]:
    order = np.argsort(names, kind="stable")
    numbers, begins, calls = np.unique(names[order], return_index=True, return_counts=True)
    ordered = duration_ns[order]
    sums = (aggregate.reduceat(ordered, begins).tolist() for aggregate in (np.add, np.minimum, np.maximum))
    labels = (_NO_OPERATOR if number == ABSENT else trace.names[number] for number in numbers.tolist())
    return dict(zip(labels, map(Times, calls.tolist(), *sums), strict=True))


def merge(first: KernelTimes, second: KernelTimes) -> KernelTimes:
    """The kernels of both; the order does not matter."""
    kernels = {
        work: _add(first.kernels.get(work, {}), second.kernels.get(work, {})) for work in first.kernels | second.kernels
    }
    if first.operators is None or second.operators is None:
        return KernelTimes(kernels, first.operators or second.operators)
    return KernelTimes(kernels, _add(first.operators, second.operators))


def _add(first: dict[str, Times], second: dict[str, Times]) -> dict[str, Times]:
    added = dict(first)
    for name, times in second.items():
        known = added.get(name)
        added[name] = (
            times
            if known is None
            else Times(
                known.calls + times.calls,
                known.total + times.total,
                min(known.shortest, times.shortest),
                max(known.longest, times.longest),
            )
        )
    return added


def analyze(partials: Sequence[KernelTimes]) -> Kernels:
    """Put the kernels of all traces in order; NoDevice where no trace holds device events."""
    if not partials:
        raise NoDevice("the traces contain no GPU events")
    merged = reduce(merge, partials)
    names = [(name, work, times) for work, times_of in merged.kernels.items() for name, times in times_of.items()]
    names.sort(key=lambda each: (-each[2].total, *each[:2]))
    whole = sum(times.total for _, _, times in names)
    operators = None
    if merged.operators is not None:
        by_total = sorted(merged.operators.items(), key=lambda each: (-each[1].total, each[0]))
        operators = tuple(LaunchTimes(name, *_figures(times, whole)) for name, times in by_total)
    doubtful = sum(
        times.total for name, work, times in names if work == Work.COMPUTE and looks_like_communication(name)
    )
    return Kernels(
        total_us=whole / NS_PER_US,
        names=tuple(KernelWork(name, *_figures(times, whole), Work(work).name.lower()) for name, work, times in names),
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
