"""What the trace of one rank says of a pipeline: its passes of micro-batches and its transfers, step by step."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from perfscope.schedules.operations import PassKind
from perfscope.tables.trace import ProcessGroup


class MeasuredPass(Struct, frozen=True, array_like=True):
    """One pass of one micro-batch as it ran, from its first to its last device work, on the wall clock.

    ``work_ns`` is for how long the device worked for it. ``first`` and ``last`` are the positions of its events in the
    order of launch.
    """

    kind: PassKind
    microbatch: int | None
    stage: int | None
    start_ns: int
    end_ns: int
    work_ns: int
    first: int
    last: int


class Transfer(Struct, frozen=True, array_like=True):
    """One kernel that moves activations or gradients between stages; it may send and receive at once.

    ``operation`` is ``send`` or ``recv``, and ``""`` where the trace does not name it.
    """

    start_ns: int
    end_ns: int
    position: int
    operation: str


_Timed = TypeVar("_Timed", MeasuredPass, Transfer)


def _shifted(timed: tuple[_Timed, ...], offset_ns: int) -> tuple[_Timed, ...]:
    return tuple(replace(one, start_ns=one.start_ns + offset_ns, end_ns=one.end_ns + offset_ns) for one in timed)


class CollectiveRun(Struct, frozen=True, array_like=True):
    """A collective on one rank: when it ended, on the wall clock, and how long it ran."""

    end_ns: int
    duration_ns: int


class PassesOfStep(Struct, frozen=True, array_like=True):
    """One training step of one rank, in the order of launch.

    ``collectives`` are by name and count: all ranks leave one at nearly the same time.
    """

    label: str
    passes: tuple[MeasuredPass, ...]
    transfers: tuple[Transfer, ...]
    collectives: dict[tuple[str, int], CollectiveRun]

    def shifted(self, offset_ns: int) -> PassesOfStep:
        """The same step on a clock that is ahead by ``offset_ns``."""
        ends = {key: replace(run, end_ns=run.end_ns + offset_ns) for key, run in self.collectives.items()}
        return PassesOfStep(self.label, _shifted(self.passes, offset_ns), _shifted(self.transfers, offset_ns), ends)

    def count(self, *kinds: PassKind) -> int:
        """How many passes are of some kinds."""
        return sum(measured.kind in kinds for measured in self.passes)


class RankPasses(Struct, frozen=True, array_like=True):
    """What one trace says of a pipeline; absent is what the trace itself does not name.

    ``device`` and ``devices`` are the rank's position in the pipeline and the pipeline's length, by marks.
    """

    rank: int | None
    world_size: int | None
    host: str
    groups: tuple[ProcessGroup, ...]
    device: int | None
    devices: int | None
    is_marked: bool
    steps: tuple[PassesOfStep, ...]

    @property
    def start_ns(self) -> int:
        """When the first pass began."""
        return min(measured.start_ns for step in self.steps for measured in step.passes)

    @property
    def position(self) -> int | None:
        """The rank's position in the pipeline: as marked, or the first of its virtual stages; absent without marks."""
        if self.device is not None:
            return self.device
        stages = {measured.stage for step in self.steps for measured in step.passes}
        return None if None in stages else min((stage for stage in stages if stage is not None), default=None)
