"""What standard error shows while many files are read: how many are done, and how long the rest will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from perfscope.hooks.messages import write_line

_T = TypeVar("_T")
_LINE_PERIOD_S = 10.0


def with_progress(answers: Iterable[_T], total: int) -> Iterator[_T]:
    """Pass the answers on, and show how many there are: in a bar on a terminal, else in a line now and then."""
    return with_bar(answers, total) if sys.stderr is not None and sys.stderr.isatty() else with_lines(answers, total)


def with_lines(answers: Iterable[_T], total: int, period_s: float = _LINE_PERIOD_S) -> Iterator[_T]:
    """Pass the answers on, and write a line of progress each time that so many seconds have passed."""
    due_s = time.monotonic() + period_s
    for count, answer in enumerate(answers, start=1):
        if time.monotonic() >= due_s:
            write_line(f"perfscope: {count:,} of {total:,} files are read")
            due_s = time.monotonic() + period_s
        yield answer


def with_bar(answers: Iterable[_T], total: int) -> Iterator[_T]:
    """Pass the answers on, and advance a bar with each of them."""
    # rich takes as long to import as a small trace to read
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # No thread refreshes the bar: the workers are forked while it is shown.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("Reading traces", total=total)
        progress.refresh()
        for answer in answers:
            progress.advance(task)
            progress.refresh()
            yield answer
