"""How fast each collective is, and how much of its time is waiting.

Bandwidth is in the units of nccl-tests. ``algbw`` is the size over the transfer time. ``busbw`` multiplies it by the
factor of the slowest link, with the group's own size n (``getBw`` of each of its programs). The factor is 2(n-1)/n for
all_reduce. It is (n-1)/n for all_gather, reduce_scatter, all_to_all, gather and scatter. It is 1 for broadcast, reduce
and transfers between two ranks. GB is 10**9 bytes. The transfer time of an operation is its shortest duration on any
rank, because the last rank to arrive waits for nobody; the median over the operations counts. The time that an
operation takes longer on another rank is waiting. No clocks are compared. Where ranks of a group are missing, the
transfer time may include waiting, and the bandwidth is a lower bound.

An all_to_all_v with unequal parts has no common size and no rank that all others wait for: it gets no bandwidth, no
transfer time and no waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np

from perfscope.analyzers.collectives.calls import GroupCalls, OperationKind
from perfscope.analyzers.collectives.matching import MatchedCalls, match
from perfscope.analyzers.collectives.rank_calls import RankCalls, calls_of_groups, measure_device
from perfscope.constants import NS_PER_US
from perfscope.errors import MissingInput, NoDevice
from perfscope.measures.doubt import Checked, check_rate
from perfscope.models.hardware import Link, lookup_gpu
from perfscope.report import MOST_ROWS, Section
from perfscope.result import (
    MS_OF_NS,
    PERCENT,
    Column,
    Doc,
    Figures,
    InUnit,
    InUnitIfKnown,
    Result,
    Table,
    figure,
)
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, Trace, distinct
from perfscope.units import format_bytes

_ALL_TO_ALL_LIKE = frozenset(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"))
_ONE_TO_ONE_LIKE = frozenset(("broadcast", "reduce", "send_recv", "send", "recv"))
_CAUSES = "the size that the profiler states, a kernel that ends before its transfer does, or the clock of the device"


def bus_factor(operation: str, ranks: int | None) -> float | None:
    """The factor from algbw to busbw in nccl-tests for a group of n ranks.

    Absent where it needs an unknown n, and of operations for which nccl-tests has none.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", None)
    (1.5, 0.75, 1.0)
    >>> bus_factor("all_to_all_v", 4), bus_factor("", 4)
    (None, None)
    """
    if operation == "all_reduce":
        return None if not ranks else 2 * (ranks - 1) / ranks
    if operation in _ALL_TO_ALL_LIKE:
        return None if not ranks else (ranks - 1) / ranks
    return 1.0 if operation in _ONE_TO_ONE_LIKE else None


def check_busbw(algbw_gb_s: float | None, operation: str, ranks: int | None, link: Link | None, what: str) -> Checked:
    """The bus bandwidth of an operation, unless the link of its GPUs cannot carry it.

    Switches that add up what passes through them halve what an all_reduce moves; its busbw counts both halves, so that
    it may be that much higher than the link's rate.
    """
    factor = bus_factor(operation, ranks)
    if factor is None or algbw_gb_s is None:
        return Checked(None)
    if link is None:
        return Checked(algbw_gb_s * factor)
    most = link.gb_s * (max(1.0, factor) if link.reduces and operation == "all_reduce" else 1.0)
    in_words = f"the {link.gb_s:g} GB/s of {link.name} in each direction ({link.source})"
    return check_rate(algbw_gb_s * factor, most, f"the busbw of {what}", in_words, _CAUSES)


class GroupOperation(Figures, frozen=True):
    """One kind of collective over all groups of one axis and size; ``transfer`` is the median in nanoseconds.

    ``hidden`` is the part of the ``covered`` time during which compute runs, over all ranks. ``link`` is absent where
    GPUs differ or are not listed.
    """

    kind: OperationKind
    operation: Annotated[str | None, Doc("``all_reduce`` and so on.")]
    dtype: Annotated[str | None, Doc("Its element type.")]
    bytes: Annotated[int | None, Doc("Its size.")]
    axis: Annotated[str | None, Doc("The axis of parallelism; None where it is unknown.")]
    group_size: Annotated[int | None, Doc("Ranks in a group; None where not stated.")]
    ranks_seen: Annotated[int, Doc("The fewest ranks of a group whose traces were given.")]
    calls: Annotated[int, Doc("How many times groups called it.")]
    duration: int
    wait: int | None
    transfer: float | None
    covered: int
    hidden: int
    link: Link | None = None
    duration_us = InUnit("duration", NS_PER_US, "Time over all ranks.")
    wait_us = InUnitIfKnown(
        "wait",
        NS_PER_US,
        "How much of it was waiting for the last rank to arrive; None where operations could not be matched.",
    )
    transfer_us = InUnitIfKnown(
        "transfer", NS_PER_US, "Median over operations of the shortest duration on any rank; None likewise."
    )

    @figure
    def is_lower_bound(self) -> bool:
        """Whether ranks of a group are missing, so that the transfer may include waiting."""
        return self.group_size is None or self.ranks_seen < self.group_size

    @figure
    def algbw_gb_s(self) -> float | None:
        """``bytes / transfer_us``, in 10**9 bytes a second, as in nccl-tests; None where it cannot be."""
        return None if self.doubt else self._algbw_gb_s

    @figure
    def busbw_gb_s(self) -> float | None:
        """``algbw_gb_s`` times what moves over the slowest link; None where that is not known, or cannot be.

        That is 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter, all_to_all, gather and scatter, 1 for
        others.
        """
        return self._checked_busbw.value

    @figure
    def doubt(self) -> str | None:
        """Why the bandwidth is withheld."""
        return self._checked_busbw.doubt or None

    @property
    def _algbw_gb_s(self) -> float | None:
        return self.kind.bytes / self.transfer if self.kind.bytes > 0 and self.transfer else None

    @property
    def _checked_busbw(self) -> Checked:
        what = f"{self.kind.operation} over {format_bytes(max(0, self.kind.bytes))}"
        return check_busbw(self._algbw_gb_s, self.kind.operation, self.group_size, self.link, what)

    @figure
    def wait_fraction(self) -> float | None:
        """``wait_us / duration_us``."""
        return None if self.wait is None or not self.duration else self.wait / self.duration

    @figure
    def overlap_fraction(self) -> float | None:
        """Share of its time during which compute runs."""
        return self.hidden / self.covered if self.covered else None


class Collectives(Result, frozen=True):
    """``results.collectives``: how fast each collective is, and how much of it is waiting."""

    operations: Annotated[tuple[GroupOperation, ...], Doc("The most expensive first.")]
    unmatched: Annotated[int, Doc("Operations that could not be matched across ranks.")]
    notes: Annotated[tuple[str, ...], Doc("What a reader must know.")]

    TABLES = (
        Table(
            "Collectives",
            "operations",
            (
                Column("Operation", lambda operation: operation.operation or "unknown"),
                Column("Axis", lambda operation: operation.axis or "not stated"),
                Column("Ranks", "group_size"),
                Column("Type", lambda operation: operation.dtype or "not stated"),
                Column("Size", "bytes", format_bytes),
                Column("Calls", "calls"),
                Column("Time (ms)", "duration", MS_OF_NS, 2),
                Column("Waiting (%)", "wait_fraction", PERCENT),
                Column("Hidden (%)", "overlap_fraction", PERCENT),
                Column("Transfer (us)", "transfer_us"),
                Column("algbw (GB/s)", "algbw_gb_s"),
                Column("busbw (GB/s)", "busbw_gb_s"),
            ),
        ),
    )

    def sections(self) -> tuple[Section, ...]:
        """One table."""
        return (self.TABLES[0].section(self.operations, self.notes, most=MOST_ROWS),)


def measure(trace: Trace) -> tuple[RankCalls, ...] | None:
    """The communication of each device of one trace; None where the trace contains no device events."""
    if not len(trace.device):
        return None
    return tuple(measure_device(trace, device) for device in distinct(trace.device.device))


def analyze(partials: Sequence[tuple[RankCalls, ...]]) -> Collectives:
    """Match the operations of all ranks, and add up each kind; MissingInput where no trace communicates."""
    if not partials:
        raise NoDevice("the traces contain no GPU events")
    groups = calls_of_groups(partials)
    if not groups:
        raise MissingInput("no communication ran on a device")
    sums: dict[tuple[str, int | None, OperationKind], _Sums] = {}
    unmatched = 0
    for key, calls in groups.items():
        matched, first = match(calls), next(iter(calls.values()))
        unmatched += matched.unmatched
        for kind in sorted({kind for rank_calls in calls.values() for kind in rank_calls.kinds}):
            size = 2 if key.sender != ABSENT else first.size
            sums.setdefault((first.role, size, kind), _Sums()).add(kind, matched, calls.values())
    gpus = {part.gpu for partial in partials for part in partial}
    gpu = lookup_gpu(next(iter(gpus))) if len(gpus) == 1 else None
    link = gpu.link if gpu else None
    operations = [of_kind.operation(role, size, kind, link) for (role, size, kind), of_kind in sums.items()]
    return Collectives(
        operations=tuple(
            sorted(operations, key=lambda each: (-each.duration, each.kind, each.axis or "", each.group_size or 0))
        ),
        unmatched=unmatched,
        notes=_notes(operations, unmatched),
    )


class _Sums:
    def __init__(self) -> None:
        self._duration = self._covered_ns = self._hidden_ns = self._calls = self._wait = 0
        self._transfers: list[Int64] = []
        self._ranks_seen: list[int] = []

    def add(self, kind: OperationKind, matched: MatchedCalls, calls: Iterable[GroupCalls]) -> None:
        chosen = matched.kind == matched.kinds.index(kind)
        transfers_ns, duration = matched.transfer_ns[chosen], int(matched.total_ns[chosen].sum())
        self._transfers.append(transfers_ns)
        self._wait += duration - len(matched.ranks) * int(transfers_ns.sum())
        self._ranks_seen.append(len(matched.ranks))
        most_calls = 0
        for group_calls in calls:
            if kind in group_calls.kinds:
                index = group_calls.kinds.index(kind)
                durations_ns = group_calls.duration_ns[group_calls.kind == index]
                most_calls = max(most_calls, len(durations_ns))
                self._duration += int(durations_ns.sum())
                self._covered_ns += int(group_calls.covered_ns[index])
                self._hidden_ns += int(group_calls.hidden_ns[index])
        self._calls += most_calls

    def operation(self, role: str, size: int | None, kind: OperationKind, link: Link | None) -> GroupOperation:
        is_comparable = kind.operation != "all_to_all_v"
        transfer = np.concatenate(self._transfers) if is_comparable else np.zeros(0)
        ranks_seen = min(self._ranks_seen)
        return GroupOperation(
            kind=kind,
            operation=kind.operation or None,
            dtype=kind.dtype or None,
            bytes=None if kind.bytes == ABSENT else kind.bytes,
            axis=role or None,
            group_size=size,
            ranks_seen=ranks_seen,
            calls=self._calls,
            duration=self._duration,
            wait=self._wait if len(transfer) and ranks_seen > 1 else None,
            transfer=float(np.median(transfer)) if len(transfer) else None,
            covered=self._covered_ns,
            hidden=self._hidden_ns,
            link=link,
        )


def _notes(operations: Sequence[GroupOperation], unmatched: int) -> tuple[str, ...]:
    notes = [
        "Transfer is the shortest duration of an operation on any rank, the rest is waiting; no clocks are compared. "
        "algbw and busbw are defined as in nccl-tests, from the median transfer and the size of the group; GB is 10**9 "
        "bytes."
    ]
    if any(operation.is_lower_bound for operation in operations):
        notes.append(
            "Some groups lack the traces of some ranks, or state no size: their transfer may include waiting, and "
            "their bandwidth is a lower bound."
        )
    if any(operation.kind.operation == "all_to_all_v" for operation in operations):
        notes.append(
            "all_to_all_v: its parts are not equal, or their sizes are not stated. Such an operation has no common "
            "size, and no rank for which all others wait, so that it gets neither bandwidth nor waiting."
        )
    if unmatched:
        notes.append(f"{unmatched} operations have no match on every rank of their group; waiting leaves them out.")
    notes += [operation.doubt for operation in operations if operation.doubt]
    return tuple(notes)
