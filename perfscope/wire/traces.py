"""What the hooks write into a trace file."""

from __future__ import annotations

from dataclasses import dataclass, field

#: How the call ends by which a light window marks the edges of steps: it does nothing, nobody calls it in a training
#: step, and the profiler records it with every other call into the device's runtime (cuda..., hip...).
EDGE_CALL = "DeviceGetStreamPriorityRange"
#: What stands in the head of a trace that `perfscope export` wrote: it is for viewers, and no rank's own.
MERGED_MARK = b'"kind":"merged timeline"'


@dataclass(frozen=True)
class TraceMetadata:
    """The value of ``wire.TRACE_METADATA`` in a trace.

    Attributes:
        first_step: The first profiled training step.
        wall_ns, monotonic_ns: Both clocks of the host, read together.
        axes: The ranks of each axis of parallelism that is used, with this one, as far as the hooks know them.
        activities: ``wire.OPERATORS`` or ``wire.LIGHT``.
        edges_ns: When each step of a light window began, and when the last one ended, on the wall clock, read behind
            the call ``EDGE_CALL``. A trace with operators marks its steps itself.
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
    axes: dict[str, tuple[int, ...]] = field(default_factory=dict)


#: Where this variable is set, an analysis of a run stores what it measures of each trace beside it.
STORE_VARIABLE = "PERFSCOPE_STORE_PARTIALS"
#: How the name of the partials of a trace ends; see ``perfscope/sources/partials.py``.
PARTIALS_SUFFIX = ".partials"


def file_name(location: str) -> str:
    """The name of a file, of its path or URL.

    >>> file_name("RUN/traces/a.json.gz")
    'a.json.gz'
    """
    return location.replace("\\", "/").rsplit("/", 1)[-1]


def partials_path(trace: str) -> str:
    """Where the partials of a trace stand: beside it.

    >>> partials_path("RUN/traces/a.pt.trace.json.gz"), partials_path("s3://bucket/a.pt.trace.json")
    ('RUN/traces/a.pt.trace.partials', 's3://bucket/a.pt.trace.partials')
    """
    return trace.removesuffix(".gz").removesuffix(".json") + PARTIALS_SUFFIX
