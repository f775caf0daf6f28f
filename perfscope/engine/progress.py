"""A bar on standard error while many traces are read: how many are done, and how long the rest will take."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def shown(items: Iterable[_T], total: int) -> Iterator[_T]:
    """The items, counted in a bar on a terminal's standard error; elsewhere, and for a single one, without it."""
    if total > 1 and sys.stderr.isatty():
        return _with_bar(items, total)
    return iter(items)


def _with_bar(items: Iterable[_T], total: int) -> Iterator[_T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # No thread refreshes the bar: the workers are forked while it is shown.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("Reading traces", total=total)
        progress.refresh()
        for item in items:
            progress.advance(task)
            progress.refresh()
            yield item
