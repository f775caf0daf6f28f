"""What a scenario is: a change of a replayed job, written as ``NAME`` or ``NAME=VALUE``, and what it gives."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import numpy as np
from msgspec import Struct

from perfscope.analyzers.replay.measured import Measured
from perfscope.analyzers.replay.replay import JobTimes
from perfscope.errors import UsageError
from perfscope.tables.columns import Int64


class Changed(Struct, frozen=True):
    """A changed job.

    Attributes:
        times: The changed durations.
        assumptions: What the answer rests on, as sentences.
        least_ns: The steps cannot take less than this, whatever the graph says; 0 where nothing else limits them.
        added_ns: What a step takes beside its replay with these durations; negative where it takes less.
        start_ns: What the step takes without the change, where it does not start from the replay.
        doubt_ns: How far a step may be off for what the traces do not show.
    """

    times: JobTimes
    assumptions: tuple[str, ...]
    least_ns: int = 0
    added_ns: float = 0.0
    start_ns: float | None = None
    doubt_ns: float = 0.0


Change = Callable[[Measured, str], Changed]


class Scenario(Struct, frozen=True):
    """One kind of change.

    Attributes:
        name: What it is called.
        value: What stands behind ``=``, for people; ``""`` where nothing does, in brackets where it may be left out.
        title: What it means, in a few words.
        module: The module of this package that applies it; it is imported when it is needed.
        function: The function in it.
    """

    name: str
    value: str
    title: str
    module: str
    function: str

    def change(self, measured: Measured, value: str) -> Changed:
        """Apply it.

        Raises:
            MissingInput: The traces cannot answer it.
            UsageError: The value names nothing.
        """
        apply: Change = getattr(import_module(f"perfscope.analyzers.replay.{self.module}"), self.function)
        return apply(measured, value)

    @property
    def needs_value(self) -> bool:
        """Whether it means nothing without a value."""
        return self.value != "" and not self.value.startswith("[AXIS]")


def parse_factor(name: str, text: str) -> float:
    """The factor behind a scenario's name: a positive number.

    Raises:
        UsageError: It is none.
    """
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise UsageError(f"{name}={text}: the factor must be a positive number", hint=f"{name}=2 is twice as fast")
    return factor


def divide(times_ns: Int64, factor: float) -> Int64:
    """Times that are so many times shorter."""
    return np.rint(times_ns / factor).astype(np.int64)
