"""Annotations of a trace that name the pass of a micro-batch which the host was launching.

Three spellings are read: the ranges of perfscope's own hooks, ``PP:2F3`` of torch.distributed.pipelining's runtime
(stage 2, forward, micro-batch 3), and ``Forward 3`` of its simple schedules.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from perfscope.schedules.operations import PassKind
from perfscope.wire.passes import parse_pass_range


@dataclass(frozen=True, slots=True)
class PassMark:
    """One annotation that names a pass of a micro-batch.

    Attributes:
        kind: Which pass.
        microbatch: Which micro-batch, from 0.
        stage: The virtual stage; absent where the annotation does not name it.
        device: The pipeline's device, and ``devices`` their number; absent where the annotation does not name them.
    """

    kind: PassKind
    microbatch: int
    stage: int | None = None
    device: int | None = None
    devices: int | None = None


_RUNTIME = re.compile(r"PP:(\d+)([FBIW])(\d+)")
_SIMPLE = re.compile(r"(Forward|Backward) (\d+)")
_SIMPLE_KINDS = {"Forward": PassKind.FORWARD, "Backward": PassKind.BACKWARD}


def parse_hooks_range(text: str) -> PassMark | None:
    """Read the range of perfscope's hooks; None for any other text."""
    parsed = parse_pass_range(text)
    if parsed is None:
        return None
    return PassMark(PassKind(parsed.kind), parsed.microbatch, parsed.stage, parsed.device, parsed.devices)


def _parse_runtime_action(text: str) -> PassMark | None:
    match = _RUNTIME.fullmatch(text)
    return None if match is None else PassMark(PassKind(match[2]), int(match[3]), int(match[1]))


def _parse_simple_schedule(text: str) -> PassMark | None:
    match = _SIMPLE.fullmatch(text)
    return None if match is None else PassMark(_SIMPLE_KINDS[match[1]], int(match[2]))


#: Parsers of the spellings, the most detailed spelling first.
_PARSERS: tuple[Callable[[str], PassMark | None], ...] = (
    parse_hooks_range,
    _parse_runtime_action,
    _parse_simple_schedule,
)


def find_marks(names: tuple[str, ...]) -> dict[int, PassMark]:
    """The marks among the names of a trace by their index, in the most detailed spelling that occurs."""
    for parse in _PARSERS:
        marks = {index: mark for index, name in enumerate(names) if (mark := parse(name)) is not None}
        if marks:
            return marks
    return {}


def are_of_hooks(marks: dict[int, PassMark]) -> bool:
    """Whether the marks are of perfscope's hooks, which exclude the time of waiting for transfers."""
    return any(mark.devices is not None for mark in marks.values())
