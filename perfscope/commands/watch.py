"""``perfscope watch``: a running job, live in a terminal, and as metrics for Prometheus."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from perfscope.errors import PerfscopeError, SourceError
from perfscope.files import replace_file
from perfscope.outcome import Outcome
from perfscope.watching.job import WatchedJob
from perfscope.watching.openmetrics import to_openmetrics
from perfscope.watching.screen import draw, print_once

#: A look takes at most this share of the time until the next one.
_LARGEST_SHARE = 0.008


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, while it runs or later.")],
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.2, max=3600, help="Time from one look at the run to the next, in seconds.")
    ] = 2.0,
    openmetrics: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also writes the figures for Prometheus.", show_default="nowhere"),
    ] = None,
) -> Outcome:
    """Show a running job: steps, throughput, MFU, GPUs, stalled ranks.

    It reads the ends of the run's files, so that a long run costs no more than a short one. It ends with the job, or by
    Ctrl-C.
    """
    job = WatchedJob(run)
    _look(job, openmetrics)
    if not once:
        if not sys.stdout.isatty() and openmetrics is None:
            raise PerfscopeError("standard output is no terminal", hint="perfscope watch --once prints one frame")
        _show(job, openmetrics, interval)
    return Outcome(text=print_once(job))


def _look(job: WatchedJob, openmetrics: Path | None) -> None:
    job.look()
    if openmetrics is not None:
        replace_file(openmetrics, to_openmetrics(job).encode())


def _show(job: WatchedJob, openmetrics: Path | None, interval: float) -> None:
    console = Console()
    try:
        with Live(console=console, auto_refresh=False, screen=console.is_terminal, transient=True) as live:
            while not job.is_over:
                began_s = time.process_time()
                with suppress(SourceError):  # a disk that is full meanwhile ends no view
                    _look(job, openmetrics)
                if console.is_terminal:
                    live.update(draw(job), refresh=True)
                spent_s = time.process_time() - began_s
                time.sleep(max(interval, spent_s / _LARGEST_SHARE))
    except KeyboardInterrupt:
        return
