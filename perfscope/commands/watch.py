"""``perfscope watch``: a running job, live in a terminal, and as metrics for Prometheus."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from perfscope.errors import PerfscopeError
from perfscope.outcome import Outcome
from perfscope.watching.job import WatchedJob
from perfscope.watching.openmetrics import FileTarget, PortTarget, open_target, to_openmetrics
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
        str | None,
        typer.Option(
            metavar="FILE|PORT",
            help="Also writes the figures for Prometheus: into a file, or on a port of this host alone.",
            show_default="nowhere",
        ),
    ] = None,
) -> Outcome:
    """Show a running job: steps, throughput, MFU, GPUs, stalled ranks.

    It reads the ends of the run's files, so that a long run costs no more than a short one. It ends with the job, or by
    Ctrl-C.
    """
    target = None if openmetrics is None else open_target(openmetrics)
    job = WatchedJob(run)
    try:
        _look(job, target)
        if not once:
            if not sys.stdout.isatty() and target is None:
                raise PerfscopeError("standard output is no terminal", hint="perfscope watch --once prints one frame")
            _show(job, target, interval)
    finally:
        if target is not None:
            target.close()
    return Outcome(text=print_once(job))


def _look(job: WatchedJob, target: FileTarget | PortTarget | None) -> None:
    """Read what is new, and publish it."""
    job.look()
    if target is not None:
        target.publish(to_openmetrics(job))


def _show(job: WatchedJob, target: FileTarget | PortTarget | None, interval: float) -> None:
    """Look until the job ends, or Ctrl-C."""
    console = Console()
    try:
        with Live(console=console, auto_refresh=False, screen=console.is_terminal, transient=True) as live:
            while not job.is_over:
                began_s = time.process_time()
                _look(job, target)
                if console.is_terminal:
                    live.update(draw(job), refresh=True)
                spent_s = time.process_time() - began_s
                time.sleep(max(interval, spent_s / _LARGEST_SHARE))
    except KeyboardInterrupt:
        return
