"""A job as it is replayed: graphs of its steps, and how long each operation took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.job_replay.graph import Graph
from perfscope.tables.columns import Int64


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of operation.

    Attributes:
        name: As the file spells it.
        cause: The name under which its slowdown is reported: both ends of a transfer have the same.
        is_transfer: Whether its ideal is the median of its peers, not the mean.
    """

    name: str
    cause: str
    is_transfer: bool


@dataclass(frozen=True, slots=True, eq=False)
class JobSteps:
    """Steps that did the same operations.

    Attributes:
        steps: Their numbers.
        graph: What waits for what.
        kinds: The type of each operation, as an index of the job's kinds.
        stages: The stage of each operation.
        labels: Which operation of its type it is, for people.
        times_ns: How long each took, of a transfer from when all had started; shape (operations, pipelines, steps).
        measured_ns: The measured time of each step.
        starts_ns: When each operation started, from the step's begin; absent where that was not recorded.
        durations_ns: How long each lasted, waiting included; absent likewise.
    """

    steps: tuple[int, ...]
    graph: Graph
    kinds: Int64
    stages: Int64
    labels: tuple[str, ...]
    times_ns: Int64
    measured_ns: Int64
    starts_ns: Int64 | None = None
    durations_ns: Int64 | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A whole job.

    Attributes:
        kinds: Its types of operations.
        ranks: The worker of each pipeline and stage.
        parts: Its steps, those together that did the same operations.
        notes: What was left out, and why; what the replay rests on.
    """

    kinds: tuple[Kind, ...]
    ranks: tuple[tuple[int, ...], ...]
    parts: tuple[JobSteps, ...]
    notes: tuple[str, ...]

    @property
    def pipelines(self) -> int:
        """Pipelines that ran side by side: the degree of data parallelism."""
        return len(self.ranks)

    @property
    def stages(self) -> int:
        """Stages of each pipeline."""
        return len(self.ranks[0])

    @property
    def step_count(self) -> int:
        """Steps that are replayed."""
        return sum(len(part.steps) for part in self.parts)


def describe_steps(steps: Sequence[int], most: int = 8) -> str:
    """Numbers of steps for a sentence.

    >>> describe_steps([3, 4, 9], most=2)
    'steps 3, 4 and 1 more'
    """
    listed = ", ".join(map(str, steps[:most]))
    more = f" and {len(steps) - most} more" if len(steps) > most else ""
    return f"step{'s' if len(steps) > 1 else ''} {listed}{more}"
