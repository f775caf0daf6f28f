"""What the hooks write into a trace file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TraceMetadata:
    """The value of ``wire.TRACE_METADATA`` in a trace.

    Attributes:
        schema: ``wire.SCHEMA``.
        rank, world_size: The rank, and how many there are.
        first_step: The first profiled training step.
        wall_ns, monotonic_ns: Both clocks of the host, read together.
        host, pid: The process; its windows have the same.
        activities: ``wire.OPERATORS`` or ``wire.LIGHT``.
        edges_ns: When each step of a light window began, and when the last one ended, on the wall clock. A trace with
            operators marks its steps itself.
    """

    schema: str | None = None
    rank: int | None = None
    world_size: int | None = None
    first_step: int | None = None
    wall_ns: int | None = None
    monotonic_ns: int | None = None
    host: str | None = None
    pid: int | None = None
    activities: str | None = None
    edges_ns: tuple[int, ...] = ()
