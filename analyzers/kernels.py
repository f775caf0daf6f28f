"""Which kernels the device spent its time in, by name and by the operator that launched them.

Times are sums over kernels, streams and ranks, so that kernels that run at once are each counted in full. The operator
is the innermost one that was running on the host when the kernel was launched; it needs the trace's operators, which
are read on request only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import NoDevice
from perfscope.report import Cell, Column, Json, Section, percent_of
from perfscope.tables.columns import Int64
from perfscope.tables.kernel_classes import looks_like_communication, short_name
from perfscope.tables.trace import ABSENT, Trace, Work, join

_MOST_ROWS = 20
_NO_OPERATOR = "(no operator)"


class Times(Struct, frozen=True, array_like=True):
    """How often something ran and how long, in nanoseconds."""

    calls: int
    total: int
    shortest: int
    longest: int

    def plus(self, addend: Times) -> Times:
        """The calls of both."""
        shortest, longest = addend.shortest, addend.longest
        return Times(
            self.calls + addend.calls,
            self.total + addend.total,
            # Comparisons take half as long as min() and max(), and this is done for each kernel of each rank.
            shortest if shortest < self.shortest else self.shortest,
            longest if longest > self.longest else self.longest,
        )


class KernelTimes(Struct, frozen=True, array_like=True):
    """The kernels of one trace, or of several.

    Attributes:
        names: By name and work.
        operators: By operator; absent where the operators were not read.
    """

    names: dict[tuple[str, int], Times] = field(default_factory=dict)
    operators: dict[str, Times] | None = None


class Kernels(Struct, frozen=True):
    """Every kernel, copy and fill by name, the most expensive first.

    Attributes:
        names: Name, work and times.
        operators: Operator and times; absent where the operators were not read.
        doubtful: Time in kernels that are classified as compute although their names suggest communication.
    """

    names: tuple[tuple[str, Work, Times], ...]
    operators: tuple[tuple[str, Times], ...] | None
    doubtful: int

    @property
    def total(self) -> int:
        """Time of all of them, in nanoseconds."""
        return sum(times.total for _, _, times in self.names)

    def data(self) -> Json:
        """``results.kernels``."""
        return {
            "total_us": self.total / NS_PER_US,
            "names": [
                {"name": name, "work": work.name.lower(), **self._times(times)} for name, work, times in self.names
            ],
            "operators": None
            if self.operators is None
            else [{"name": name, **self._times(times)} for name, times in self.operators],
            "doubtful_us": self.doubtful / NS_PER_US,
        }

    def _times(self, times: Times) -> dict[str, Json]:
        return {
            "calls": times.calls,
            "total_us": times.total / NS_PER_US,
            "fraction": times.total / self.total if self.total else None,
            "mean_us": times.total / times.calls / NS_PER_US,
            "min_us": times.shortest / NS_PER_US,
            "max_us": times.longest / NS_PER_US,
        }

    def sections(self) -> tuple[Section, ...]:
        """The most expensive ones."""
        columns = (
            Column("Calls"),
            Column("Total (ms)", 2),
            Column("Share (%)"),
            Column("Mean (us)"),
            Column("Max (us)"),
        )
        rows = tuple(
            (short_name(name), work.name.lower(), *self._cells(times)) for name, work, times in self.names[:_MOST_ROWS]
        )
        notes = [f"{len(self.names)} distinct names. Kernels that overlap in time are each counted in full."]
        if self.doubtful:
            share = percent_of(self.doubtful, self.total)
            notes.append(
                f"{share:.1f} % of the time is in kernels classified as compute whose names suggest communication."
            )
        sections = [Section("Kernels", (Column("Kernel"), Column("Work"), *columns), rows, tuple(notes))]
        if self.operators is not None:
            launched = tuple((name, *self._cells(times)) for name, times in self.operators[:_MOST_ROWS])
            sections.append(Section("Kernels by operator", (Column("Operator"), *columns), launched))
        return tuple(sections)

    def _cells(self, times: Times) -> tuple[Cell, ...]:
        return (
            times.calls,
            times.total / NS_PER_MS,
            percent_of(times.total, self.total),
            times.total / times.calls / NS_PER_US,
            times.longest / NS_PER_US,
        )


def measure(trace: Trace) -> KernelTimes | None:
    """The kernels of one trace; None where it contains no device events."""
    device = trace.device
    if not len(device):
        return None
    kinds = device.name.astype(np.int64) * len(Work) + device.work
    names = {
        (trace.names[kind // len(Work)], kind % len(Work)): times
        for kind, times in _times_by_key(kinds, device.duration_ns)
    }
    return KernelTimes(names, _operators(trace) if len(trace.operators) else None)


def merge(first: KernelTimes, second: KernelTimes) -> KernelTimes:
    """The kernels of both; the order does not matter."""
    names = dict(first.names)
    for key, times in second.names.items():
        known = names.get(key)
        names[key] = times if known is None else known.plus(times)
    if first.operators is None or second.operators is None:
        return KernelTimes(names, first.operators or second.operators)
    operators = dict(first.operators)
    for name, times in second.operators.items():
        operators[name] = operators[name].plus(times) if name in operators else times
    return KernelTimes(names, operators)


def analyze(partials: Sequence[KernelTimes]) -> Kernels:
    """Put the kernels of all traces in order.

    Raises:
        NoDevice: No trace holds device events.
    """
    if not partials:
        raise NoDevice("the traces contain no GPU events")
    merged = KernelTimes()
    for partial in partials:
        merged = merge(merged, partial)
    names = sorted(merged.names.items(), key=lambda item: (-item[1].total, item[0]))
    operators = merged.operators
    doubtful = sum(
        times.total
        for (name, work), times in merged.names.items()
        if work == Work.COMPUTE and looks_like_communication(name)
    )
    return Kernels(
        names=tuple((name, Work(work), times) for (name, work), times in names),
        operators=None
        if operators is None
        else tuple(sorted(operators.items(), key=lambda item: (-item[1].total, item[0]))),
        doubtful=doubtful,
    )


def _operators(trace: Trace) -> dict[str, Times]:
    """Times of the device events by the operator that has their external id."""
    row = join(trace.device.external_id, trace.operators.external_id)
    names = np.append(trace.operators.name.astype(np.int64), ABSENT)[row]
    return {
        _NO_OPERATOR if name == ABSENT else trace.names[name]: times
        for name, times in _times_by_key(names, trace.device.duration_ns)
    }


def _times_by_key(keys: Int64, duration_ns: Int64) -> list[tuple[int, Times]]:
    """Times by key."""
    order = np.argsort(keys, kind="stable")
    distinct, begins, calls = np.unique(keys[order], return_index=True, return_counts=True)
    ordered = duration_ns[order]
    totals, shortest, longest = (aggregate.reduceat(ordered, begins) for aggregate in (np.add, np.minimum, np.maximum))
    return [
        (int(key), Times(int(count), int(total), int(least), int(most)))
        for key, count, total, least, most in zip(distinct, calls, totals, shortest, longest, strict=True)
    ]
