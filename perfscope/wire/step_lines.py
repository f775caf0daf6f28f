"""The line of a step like most others, put together without a StepRecord, which takes ten times as long.

This module is imported inside training jobs: standard library only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def to_step_line(step: int, end_ns: int, source: str, wall_ns: int, fields: Iterable[tuple[str, object]]) -> bytes:
    """Encode the same line as ``to_line`` of a StepRecord does.

    The further ``fields`` are names and values in the order of StepRecord; None stands for what is unknown.

    Raises:
        ValueError: A number is not finite.
    """
    return f'{{"step":{step},"end_ns":{end_ns},"source":"{source}","wall_ns":{wall_ns}{to_text(fields)}}}\n'.encode()


def to_text(fields: Iterable[tuple[str, object]]) -> str:
    """The further fields of such a line, each behind a comma.

    Raises:
        ValueError: A number is not finite.
    """
    parts = []
    for name, value in fields:
        if value is not None:  # a number that a framework states may be of another type
            text = value if type(value) is int else json.dumps(value, allow_nan=False, separators=(",", ":"))
            parts.append(f',"{name}":{text}')
    return "".join(parts)
