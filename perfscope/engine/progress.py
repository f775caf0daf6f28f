"""What standard error shows while many traces are read: how many are done, and how long the rest will take."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from perfscope.engine.progress_lines import with_lines

_T = TypeVar("_T")


def with_progress(answers: Iterable[_T], total: int) -> Iterator[_T]:
    """Pass the answers on, and show how many there are: in a bar on a terminal, else in a line now and then."""
    return with_bar(answers, total) if sys.stderr is not None and sys.stderr.isatty() else with_lines(answers, total)


def with_bar(answers: Iterable[_T], total: int) -> Iterator[_T]:
    """Pass the answers on, and advance a bar with each of them."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # No thread refreshes the bar: the workers are forked while it is shown.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("Reading traces", total=total)
        progress.refresh()
        for answer in answers:
            progress.advance(task)
            progress.refresh()
            yield answer
