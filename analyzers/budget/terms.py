"""The terms of a step's budget: what a step's time is made of, in names that two runs have in common."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from perfscope.tables.columns import Int64

COMPUTE, COMMUNICATION, COPY, IDLE, LOADING, OTHER = (
    "compute", "exposed communication", "exposed copy", "idle", "data loading", "other"
)  # fmt: skip
#: The order of kinds where terms are equally large.
KINDS = (COMPUTE, COMMUNICATION, COPY, IDLE, LOADING, OTHER)


class Term(NamedTuple):
    """One term.

    Attributes:
        kind: One of KINDS.
        name: The kernel or operator, the axis of communication, the copy, or the cause of idle time.
        operator: The operator that launched the kernel; empty where the trace does not say so, or it was not read.
    """

    kind: str
    name: str = ""
    operator: str = ""


class Kernel(NamedTuple):
    """A kernel and the grid that it was launched with, as a number; ABSENT where the trace does not state it."""

    name: str
    grid: int


class Launches(Struct, frozen=True, array_like=True):
    """How often a kernel ran in all counted steps of a device, and for how long altogether."""

    calls: int
    total_ns: int


class Operation(Struct, frozen=True, array_like=True, order=True):
    """Calls of a matrix product with the same shapes: its operator, shapes and element types."""

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    elements: tuple[str, ...]


class StepBudget(Struct, frozen=True, array_like=True, eq=False):
    """The budget of each step of one device, or of one rank's host.

    Attributes:
        rank: The rank; absent where nothing states it.
        device: Index of its GPU; absent for a host.
        trace: The file.
        activities: What its times are of: see ``Trace``.
        steps: The numbers of the steps; empty where none is marked, for the whole window.
        period_ns: How long each lasted, from the end of the step before to its own.
        terms: Each term's time in each step; they add up to ``period_ns`` exactly.
        kernels: The kernels of these steps; empty for a host.
        operations: Matrix products a step, times 1000; empty where the trace states no shapes.
    """

    rank: int | None
    device: int | None
    trace: str
    activities: str
    steps: tuple[int, ...]
    period_ns: Int64
    terms: dict[Term, Int64]
    kernels: dict[Kernel, Launches]
    operations: dict[Operation, int]

    def __post_init__(self) -> None:
        total = sum(self.terms.values(), np.zeros(len(self.period_ns), np.int64))
        if (total != self.period_ns).any():
            raise AssertionError(f"{self.trace}: the terms of a step do not add up to it: {total} {self.period_ns}")
