"""Requests to the ranks of a running job, and their answers.

A request is a file in ``RUN/control`` that appears with its whole content. Each rank looks at the folder every
two seconds, during training::

    RUN/control/window-0001.json     WindowRequest: open a profiler window.
    RUN/control/anomaly-DAY-1.json   the same, asked for by a rank whose steps have become slower.
    RUN/control/stall-0001.json      StallRequest: keep stacks and collectives now.
    RUN/ranks/00000/answers.jsonl    one Answer per request for a window.

This module is imported inside training jobs: standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

ANSWERS_FILE = "answers.jsonl"
WINDOW_PREFIX = "window-"
ANOMALY_PREFIX = "anomaly-"
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
        reason: Why a rank asks for it; absent where a person does.
    """

    first: int
    last: int
    wall_ns: int
    ranks: tuple[int, ...] | None = None
    light: bool = False
    shapes: bool = False
    stack: bool = False
    memory: bool = False
    reason: str | None = None

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
        return _check_request(fields)


@dataclass(frozen=True)
class Answer:
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

    def to_line(self) -> bytes:
        """One line of ``answers.jsonl``."""
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"


def _check_request(fields: Mapping[str, object]) -> WindowRequest:
    flags = {name: fields.get(name, False) for name in ("light", "shapes", "stack", "memory")}
    for name, flag in flags.items():
        if type(flag) is not bool:
            raise ValueError(f"{name} is neither true nor false")
    numbers = [fields.get(name) for name in ("first", "last", "wall_ns")]
    first, last, wall_ns = (number if type(number) is int else 0 for number in numbers)
    if not 1 < first <= last < first + _LONGEST_WINDOW:
        raise ValueError(f"the window {numbers[0]}-{numbers[1]} cannot be profiled")
    ranks = fields.get("ranks")
    if ranks is not None and (not isinstance(ranks, list) or any(type(rank) is not int for rank in ranks)):
        raise ValueError("ranks is not a list of whole numbers")
    reason = fields.get("reason")
    return WindowRequest(
        first,
        last,
        wall_ns,
        ranks=tuple(ranks) if isinstance(ranks, list) else None,
        light=flags["light"] is True,
        shapes=flags["shapes"] is True,
        stack=flags["stack"] is True,
        memory=flags["memory"] is True,
        reason=reason if isinstance(reason, str) else None,
    )


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
