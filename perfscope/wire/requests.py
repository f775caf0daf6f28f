"""Requests to the ranks of a running job, and their answers.

A request is a file in ``RUN/control`` that appears with its whole content. Each rank looks at the folder every
two seconds, during training::

    RUN/control/window-0001.json     WindowRequest: open a profiler window.
    RUN/control/stall-STEP.json      a rank has stalled: keep stacks and collectives now.
    RUN/ranks/00000/answers.jsonl    one WindowAnswer per request for a window.

This module is imported inside training jobs: standard library only.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

from perfscope.constants import NS_PER_S

ANSWERS_FILE = "answers.jsonl"
WINDOW_PREFIX = "window-"
STALL_PREFIX = "stall-"

#: What a rank answers: it will open the window, it learned of it too late, or it does not open it.
PLANNED = "planned"
LATE = "late"
REFUSED = "refused"

_LONGEST_WINDOW = 1000
#: A window begins so much later than it is asked for: every rank looks at least three times, at most 2.5 s apart.
MARGIN_S = 8.0
_FEWEST_STEPS_AHEAD = 4


@dataclass(frozen=True)
class WindowRequest:
    """Open a profiler window on the steps ``first`` to ``last`` of some ranks, or of all.

    A light one records kernels and their launches alone; shapes, stack and memory are options of torch.profiler.
    """

    first: int
    last: int
    wall_ns: int
    ranks: tuple[int, ...] | None = None
    light: bool = False
    shapes: bool = False
    stack: bool = False
    memory: bool = False

    def to_json(self) -> bytes:
        """The content of its file."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_json(cls, content: bytes) -> WindowRequest:
        """Read what ``to_json`` wrote. Raises ValueError: it is something else."""
        try:
            fields = json.loads(content)
        except ValueError:
            raise ValueError("it is not JSON") from None
        if not isinstance(fields, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004 - of the file, whatever is wrong
        unknown = set(fields) - set(cls.__dataclass_fields__)
        if unknown:
            raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
        for name in ("light", "shapes", "stack", "memory"):
            if type(fields.get(name, False)) is not bool:
                raise ValueError(f"{name} is neither true nor false")
        first, last, ranks = fields.get("first", 0), fields.get("last", 0), fields.get("ranks")
        are_numbers = all(type(fields.get(name)) is int for name in ("first", "last", "wall_ns"))
        if not (are_numbers and 1 < first <= last < first + _LONGEST_WINDOW):
            raise ValueError(f"the window {first}-{last} cannot be profiled")
        if ranks is not None:
            if not isinstance(ranks, list) or any(type(rank) is not int for rank in ranks):
                raise ValueError("ranks is not a list of whole numbers")
            fields["ranks"] = tuple(ranks)
        return cls(**fields)


@dataclass(frozen=True)
class WindowAnswer:
    """What a rank does about the request in a file of this name, and after how many steps; ``reason`` says why not."""

    request: str
    status: str
    step: int
    reason: str | None = None


def first_step(steps: int, step_ns: float | None) -> int:
    """The first step of a window that all ranks can learn of in time.

    ``steps`` are those that the rank which is ahead has completed, and ``step_ns`` is their usual time.

    >>> first_step(100, 0.1e9), first_step(100, 30e9)
    (181, 105)
    """
    ahead = math.ceil(MARGIN_S * NS_PER_S / step_ns) if step_ns else 0
    return steps + 1 + max(_FEWEST_STEPS_AHEAD, ahead)
