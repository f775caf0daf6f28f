"""Lines of progress on standard error while many files are read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from perfscope.hooks.messages import write_line

_T = TypeVar("_T")
_LINE_PERIOD_S = 10.0


def with_lines(answers: Iterable[_T], total: int, period_s: float = _LINE_PERIOD_S) -> Iterator[_T]:
    """Pass the answers on, and write a line of progress each time that so many seconds have passed."""
    due_s = time.monotonic() + period_s
    for count, answer in enumerate(answers, start=1):
        if time.monotonic() >= due_s:
            write_line(f"perfscope: {count:,} of {total:,} files are read")
            due_s = time.monotonic() + period_s
        yield answer
