"""Which kernels the device spent its time in, by name and by the operator that launched them.

Times are sums over kernels, streams and ranks, so that kernels that run at once are each counted in full. The operator
is the innermost one that was running on the host when the kernel was launched; it needs the trace's operators, which
are read on request only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec import Struct

from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import NoDevice
from perfscope.report import Cell, Column, Json, Section, percent_of
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.kernel_classes import looks_like_communication, short_name
from perfscope.tables.trace import ABSENT, Trace, Work, distinct, join

_MOST_ROWS = 20
_NO_OPERATOR = "(no operator)"
#: Rows of times that are not added up, and the column of what never ran.
_SHORTEST, _LONGEST = 2, 3
_NOTHING = np.array([[0], [0], [np.iinfo(np.int64).max], [0], [0]], np.int64)
_NO_TIMES = np.zeros((5, 0), np.int64)
#: Kernels of PyTorch, its compiler and the libraries below it that prepare what a stream of communication sends.
_PREPARES = re.compile(r"\bat::|\bc10::|^triton_|\bcutlass::|\bcublas|multi_tensor|softmax|\bthrust::|\bcub::")
_MOST_NAMED = 5

_Key = TypeVar("_Key", bound="str | tuple[str, int]")


class Times(NamedTuple):
    """How often something ran and how long, in nanoseconds; ``beside`` is the time on streams of communication."""

    calls: int
    total: int
    shortest: int
    longest: int
    beside: int


class KernelTimes(Struct, frozen=True, eq=False, array_like=True):
    """The kernels of one trace, or of several.

    Attributes:
        names: Each one's name and work, in order.
        times: One row for each field of ``Times``, one column a name.
        operators: The operators, in order; absent where they were not read.
        operator_times: The same of these, one column an operator.
    """

    names: tuple[tuple[str, int], ...]
    times: Int64
    operators: tuple[str, ...] | None = None
    operator_times: Int64 | None = None

    def __post_init__(self) -> None:
        """Refuse columns that do not belong together, as of a stored partial that somebody made up.

        Raises:
            ValueError: There are more names than columns, or fewer.
        """
        columns = (self.operators or (), self.operator_times) if self.operator_times is not None else ((), _NO_TIMES)
        for names, times in ((self.names, self.times), columns):
            if times.shape != (len(Times._fields), len(names)):
                raise ValueError("times are not those of the names")


class Kernels(Struct, frozen=True):
    """Every kernel, copy and fill by name, the most expensive first.

    Attributes:
        names: Name, work and times.
        operators: Operator and times; absent where the operators were not read.
        doubtful: Time in kernels that are classified as compute although their names suggest communication.
        unknown: Kernels classified as compute that ran on streams of communication alone, and that nobody knows.
    """

    names: tuple[tuple[str, Work, Times], ...]
    operators: tuple[tuple[str, Times], ...] | None
    doubtful: int
    unknown: tuple[str, ...] = ()

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
            "unknown": list(self.unknown),
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
        if self.unknown:
            named = ", ".join(map(short_name, self.unknown[:_MOST_NAMED]))
            more = f" and {len(self.unknown) - _MOST_NAMED} more" if len(self.unknown) > _MOST_NAMED else ""
            notes.append(
                f"On streams of communication alone ran kernels that no pattern knows: {named}{more}. They count as "
                "compute; `--kernels FILE` makes them communication."
            )
        sections = [Section("Kernels", (Column("Kernel"), Column("Work"), *columns), rows, tuple(notes))]
        if self.operators is not None:
            launched = tuple((name, *self._cells(times)) for name, times in self.operators[:_MOST_ROWS])
            note = "`--only roofline` says how far operators are from what the GPU can do, where the trace has shapes."
            sections.append(Section("Kernels by operator", (Column("Operator"), *columns), launched, (note,)))
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
    keys = device.name.astype(np.int64) * len(Work) + device.work
    kinds, times = _times_by_key(keys, device.duration_ns, _beside_communication(trace))
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
    operators = None
    if merged.operators is not None and merged.operator_times is not None:
        operators = tuple(_by_total(merged.operators, merged.operator_times))
    names = tuple((name, Work(work), times) for (name, work), times in _by_total(merged.names, merged.times))
    return Kernels(
        names=names,
        operators=operators,
        doubtful=sum(
            times.total for name, work, times in names if work == Work.COMPUTE and looks_like_communication(name)
        ),
        unknown=tuple(
            name
            for name, work, times in names
            if work == Work.COMPUTE and times.beside == times.total > 0 and not _PREPARES.search(name)
        ),
    )


def _by_total(keys: Sequence[_Key], times: Int64) -> list[tuple[_Key, Times]]:
    """What has most time first."""
    listed = zip(keys, map(Times._make, times.T.tolist()), strict=True)
    return sorted(listed, key=lambda item: (-item[1].total, item[0]))


def _in_order(keys: Sequence[_Key], times: Int64) -> tuple[tuple[_Key, ...], Int64]:
    """Different keys in order with their times: those of two ranks that launch the same are the same."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return tuple(keys[column] for column in order), np.ascontiguousarray(times[:, order])


def _join(
    first: tuple[_Key, ...], first_times: Int64, second: tuple[_Key, ...], second_times: Int64
) -> tuple[tuple[_Key, ...], Int64]:
    """The times of both by key."""
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
    """The times of both, column by column."""
    times = first + second
    np.minimum(first[_SHORTEST], second[_SHORTEST], out=times[_SHORTEST])
    np.maximum(first[_LONGEST], second[_LONGEST], out=times[_LONGEST])
    return times


def _operators(trace: Trace) -> tuple[tuple[str, ...], Int64]:
    """Times of the device events by the operator that has their external id."""
    row = join(trace.device.external_id, trace.operators.external_id)
    names = np.append(trace.operators.name.astype(np.int64), ABSENT)[row]
    nowhere = np.zeros(len(names), np.bool_)
    numbers, times = _times_by_key(names, trace.device.duration_ns, nowhere)
    return _in_order([_NO_OPERATOR if number == ABSENT else trace.names[number] for number in numbers], times)


def _beside_communication(trace: Trace) -> Bool:
    """Which device events ran on a stream of communication: it communicates more than it computes, others compute."""
    device = trace.device
    beside = np.zeros(len(device), np.bool_)
    computes, communicates = device.is_work(Work.COMPUTE), device.is_work(Work.COMMUNICATION, Work.FUSED)
    for index in distinct(device.device):
        of_device = device.device == index
        whole_ns = int(device.duration_ns[of_device & computes].sum())
        for stream in distinct(device.stream[of_device & communicates]):
            rows = of_device & (device.stream == stream)
            computed_ns, sent_ns = (int(device.duration_ns[rows & kind].sum()) for kind in (computes, communicates))
            if sent_ns > computed_ns and 2 * computed_ns < whole_ns:
                beside |= rows
    return beside


def _times_by_key(keys: Int64, duration_ns: Int64, beside: Bool) -> tuple[list[int], Int64]:
    """The different keys, and their times: one column a key."""
    order = np.argsort(keys, kind="stable")
    distinct, begins, calls = np.unique(keys[order], return_index=True, return_counts=True)
    ordered = duration_ns[order]
    totals, shortest, longest = (aggregate.reduceat(ordered, begins) for aggregate in (np.add, np.minimum, np.maximum))
    besides = np.add.reduceat((duration_ns * beside)[order], begins)
    return distinct.tolist(), np.array([calls, totals, shortest, longest, besides], np.int64)
