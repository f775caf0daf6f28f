"""What a step waits for: its time less that of a replay without a cause, beside what a trace shows as exposed.

Exposed communication is neither what communication costs nor what would be saved. It costs more where it slows the
kernels beside it, and less where a step would wait for something else in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.replay.changes import Changed
from perfscope.analyzers.replay.communication_changes import exposed_communication, free_communication
from perfscope.analyzers.replay.host_changes import free_data_loading, free_host
from perfscope.analyzers.replay.measured import Measured
from perfscope.analyzers.replay.replay import Replay
from perfscope.analyzers.replay.steps import span_of_steps
from perfscope.constants import NS_PER_US
from perfscope.errors import MissingInput
from perfscope.report import Json
from perfscope.tables.trace import Work

COMMUNICATION, LAUNCHES, SYNCHRONISATION, DATA = "communication", "launches", "synchronisation", "data loading"


@dataclass(frozen=True, slots=True)
class Blocking:
    """What one cause costs a step.

    Attributes:
        cause: The cause.
        blocking_ns: What a step takes less in a replay without it.
        exposed_ns: For communication the time of a step in which a rank communicates and computes nothing, of the rank
            where that is least; absent for other causes.
        contention_ns: For communication what it costs by slowing the kernels beside it, likewise.
    """

    cause: str
    blocking_ns: float
    exposed_ns: float | None = None
    contention_ns: float | None = None

    @property
    def order_ns(self) -> float | None:
        """The rest of the difference: a step would wait for something else, or waits for more than is exposed."""
        if self.exposed_ns is None or self.contention_ns is None:
            return None
        return self.blocking_ns - self.exposed_ns - self.contention_ns

    def data(self) -> dict[str, Json]:
        """One entry of ``blocking`` in JSON, for one step."""
        parts = {"exposed_us": self.exposed_ns, "contention_us": self.contention_ns, "order_us": self.order_ns}
        return {
            "cause": self.cause,
            "blocking_us": self.blocking_ns / NS_PER_US,
            **{name: None if value is None else value / NS_PER_US for name, value in parts.items()},
        }


def measure_blocking(measured: Measured) -> tuple[Blocking, ...]:
    """The blocking time of each cause that a job has."""
    found = []
    if any((graph.work == Work.COMMUNICATION).any() for graph in measured.job.ranks):
        found.append(_communication(measured))
    found.append(Blocking(LAUNCHES, _saved(measured, free_host)))
    if any(len(graph.host_call) for graph in measured.job.ranks):
        found.append(Blocking(SYNCHRONISATION, _without_synchronisation(measured)))
    with suppress(MissingInput):  # where there is no data loader
        found.append(Blocking(DATA, _saved(measured, free_data_loading)))
    return tuple(found)


def _saved(measured: Measured, change: Callable[[Measured, str], Changed]) -> float:
    changed = change(measured, "")
    return measured.replayed.step_ns - span_of_steps(measured.job, measured.replay.run(changed.times).end_ns).step_ns


def _communication(measured: Measured) -> Blocking:
    changed = free_communication(measured, "").times
    slow = [
        replace(free, event_ns=np.where(graph.work == Work.COMMUNICATION, free.event_ns, times.event_ns))
        for graph, free, times in zip(measured.job.ranks, changed.ranks, measured.times.ranks, strict=True)
    ]
    free_ns = span_of_steps(measured.job, measured.replay.run(changed).end_ns).step_ns
    slow_ns = span_of_steps(measured.job, measured.replay.run(changed.with_ranks(slow)).end_ns).step_ns
    exposed_ns = exposed_communication(measured.job.ranks) / measured.steps.steps
    return Blocking(COMMUNICATION, measured.replayed.step_ns - free_ns, exposed_ns, slow_ns - free_ns)


def _without_synchronisation(measured: Measured) -> float:
    """What a step takes less where no call of the host waits for the device."""
    nothing = np.zeros(0, np.int64)
    ranks = tuple(replace(graph, host_call=nothing, host_event=nothing) for graph in measured.job.ranks)
    job = replace(measured.job, ranks=ranks)
    return measured.replayed.step_ns - span_of_steps(job, Replay(job).run(measured.times).end_ns).step_ns
