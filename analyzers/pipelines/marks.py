"""What annotations say of a micro-batch: which pass of which micro-batch on which stage the host was launching.

Three spellings are known: that of perfscope's own hooks, ``PP:2F3`` of torch.distributed.pipelining's runtime (stage 2,
forward, micro-batch 3), and ``Forward 3`` of its simple schedules.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from perfscope.schedules.orders import Kind
from perfscope.wire import parse_pass_range


@dataclass(frozen=True, slots=True)
class Mark:
    """One annotation that names a pass of a micro-batch.

    Attributes:
        kind: Which pass.
        microbatch: Which micro-batch, from 0.
        stage: The virtual stage; absent where the annotation does not tell.
        device: The pipeline's device, and ``devices`` their number; absent where the annotation does not tell.
    """

    kind: Kind
    microbatch: int
    stage: int | None = None
    device: int | None = None
    devices: int | None = None


_RUNTIME = re.compile(r"PP:(\d+)([FBIW])(\d+)")
_SIMPLE = re.compile(r"(Forward|Backward) (\d+)")
_SIMPLE_KINDS = {"Forward": Kind.FORWARD, "Backward": Kind.BACKWARD}


def _ours(text: str) -> Mark | None:
    parsed = parse_pass_range(text)
    if parsed is None:
        return None
    return Mark(Kind(parsed.kind), parsed.microbatch, parsed.stage, parsed.device, parsed.devices)


def _runtime(text: str) -> Mark | None:
    match = _RUNTIME.fullmatch(text)
    return None if match is None else Mark(Kind(match[2]), int(match[3]), int(match[1]))


def _simple(text: str) -> Mark | None:
    match = _SIMPLE.fullmatch(text)
    return None if match is None else Mark(_SIMPLE_KINDS[match[1]], int(match[2]))


#: The spellings, the one that tells most first.
SPELLINGS: tuple[Callable[[str], Mark | None], ...] = (_ours, _runtime, _simple)


def marks_in(names: tuple[str, ...]) -> dict[int, Mark]:
    """The marks among the names of a trace by their index; of the spellings only the one that tells most."""
    for read in SPELLINGS:
        found = {index: mark for index, name in enumerate(names) if (mark := read(name)) is not None}
        if found:
            return found
    return {}


def is_ours(marks: dict[int, Mark]) -> bool:
    """Whether the marks are of perfscope's hooks, which leave the waiting for transfers out."""
    return any(mark.devices is not None for mark in marks.values())
