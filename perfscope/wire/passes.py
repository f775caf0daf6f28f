"""Passes of micro-batches: their record, and how their ranges are named in a trace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

#: How the name of a range around a pass of a micro-batch begins.
PASS_RANGE = "perfscope: "
#: Kinds of passes in records, and how the ranges of a trace spell them.
PASS_KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
_PASS_RANGE = re.compile(rf"{PASS_RANGE}({'|'.join(PASS_KINDS.values())}) (\d+) stage (\d+) device (\d+) of (\d+)")


class PassRange(NamedTuple):
    """The range around a pass of a micro-batch in a trace: see ``MicroBatchRecord``; micro-batches count from 0."""

    kind: str
    microbatch: int
    stage: int
    device: int
    devices: int

    @property
    def name(self) -> str:
        """The name of the range.

        >>> PassRange("I", 3, 5, 1, 4).name
        'perfscope: input gradient 3 stage 5 device 1 of 4'
        """
        words = f"{PASS_KINDS[self.kind]} {self.microbatch} stage {self.stage} device {self.device} of {self.devices}"
        return PASS_RANGE + words


def parse_pass_range(name: str) -> PassRange | None:
    """Read the name of a range; None for a name that is not that of a pass.

    >>> parse_pass_range("perfscope: forward 3 stage 5 device 1 of 4").microbatch
    3
    """
    match = _PASS_RANGE.fullmatch(name)
    if match is None:
        return None
    kind = next(kind for kind, words in PASS_KINDS.items() if words == match[1])
    return PassRange(kind, *(int(number) for number in match.groups()[1:]))


@dataclass(frozen=True)
class MicroBatchRecord:
    """The passes of micro-batches of one training step on one rank of a pipeline.

    Attributes:
        device: The rank's position in the pipeline, and ``devices`` its length.
        stages: Virtual stages of the model.
        span_ns: From the beginning of the first pass to the end of the last one.
        totals: Kind of pass (a key of ``PASS_KINDS``), virtual stage, number of passes and their time in nanoseconds.
        order: Each pass as ``F3.1``: kind, micro-batch, virtual stage; absent where it repeats the previous record's.
        times_ns: Beginning and length of each pass of ``order``; absent with it.
    """

    step: int
    device: int
    devices: int
    stages: int
    span_ns: int
    totals: tuple[tuple[str, int, int, int], ...]
    order: tuple[str, ...] | None = None
    times_ns: tuple[tuple[int, int], ...] | None = None
