"""Collects the spans of a trace that tell forward passes, backward passes and what is computed again."""

from __future__ import annotations

from array import array
from typing import TypeAlias

import numpy as np

from perfscope.constants import NS_PER_US
from perfscope.tables.columns import Float64, Int64
from perfscope.tables.products import Scope, Scopes
from perfscope.tables.trace import ABSENT

#: Thread, start and end in microseconds, as they are written.
Written: TypeAlias = tuple[bytes, float, float]


class ScopeColumns:
    """What tells passes apart, as columns: a thread, and times, of each."""

    def __init__(self) -> None:
        self._threads: dict[bytes, int] = {}
        self._scope, self._thread = array("b"), array("q")
        self._start_us, self._end_us = array("d"), array("d")

    def add(self, scope: Scope | None, times: Written, sequence: int) -> None:
        """Add a span, with its number in autograd or ABSENT; without a number it is a node, or does not count."""
        if scope is None or (sequence == ABSENT and scope > Scope.COMPILED_NODE):
            return
        thread, start_us, end_us = times
        self._scope.append(scope)
        self._thread.append(self._threads.setdefault(thread, len(self._threads)))
        self._start_us.append(start_us)
        self._end_us.append(end_us)

    def table(self) -> Scopes:
        """The spans."""
        ids = np.array([to_thread(written) for written in self._threads] or [ABSENT], np.int64)
        return Scopes(
            scope=np.frombuffer(self._scope, np.int8).astype(np.int64),
            start_ns=to_ns(np.frombuffer(self._start_us, np.float64)),
            end_ns=to_ns(np.frombuffer(self._end_us, np.float64)),
            thread=ids[np.frombuffer(self._thread, np.int64)],
        )


def to_ns(times_us: Float64) -> Int64:
    """Microseconds as nanoseconds, to the precision of a double."""
    whole = np.floor(times_us)
    return np.asarray(whole.astype(np.int64) * NS_PER_US + np.rint((times_us - whole) * NS_PER_US).astype(np.int64))


def to_thread(written: bytes) -> int:
    """The number of a thread, or ABSENT."""
    try:
        return int(written)
    except ValueError:
        return ABSENT
