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

ANSWERS_FILE = "answers.jsonl"
WINDOW_PREFIX = "window-"
STALL_PREFIX = "stall-"

#: What a rank answers: it will open the window, it learned of it too late, or it does not open it.
PLANNED = "planned"
LATE = "late"
REFUSED = "refused"

_LONGEST_WINDOW = 1000
#: A window begins so much later than it is asked for: a look comes at most two and a half seconds after the one before,
#: so that every rank looks at least three times, also on a slow file system.
_MARGIN_S = 8.0
_FEWEST_STEPS_AHEAD = 4
_NS_PER_S = 10**9


@dataclass(frozen=True)
class WindowRequest:
    """Open a profiler window on the steps ``first`` to ``last``.

    Attributes:
        first: The first profiled training step.
        last: The last one.
        wall_ns: When it was asked for.
        ranks: The ranks to profile; None for all.
        light: Record kernels and their launches alone.
        shapes, stack, memory: Options of torch.profiler.
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
        """Read what ``to_json`` wrote.

        Raises:
            ValueError: It is something else; the message says what is wrong.
        """
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
    """What a rank does about a request.

    Attributes:
        request: The name of the request's file.
        status: ``planned``, ``late`` or ``refused``.
        step: Training steps that were completed then.
        reason: Why the window is not opened.
    """

    request: str
    status: str
    step: int
    reason: str | None = None


def first_step(steps: int, step_ns: float | None) -> int:
    """The first step of a window that all ranks can learn of in time.

    Args:
        steps: Steps that the rank which is ahead has completed by now.
        step_ns: The usual time of a step; None where no step was seen.

    >>> first_step(100, 0.1e9), first_step(100, 30e9)
    (181, 105)
    """
    ahead = math.ceil(_MARGIN_S * _NS_PER_S / step_ns) if step_ns else 0
    return steps + 1 + max(_FEWEST_STEPS_AHEAD, ahead)
