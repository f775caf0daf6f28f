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
#: MFU is found out once so many steps are there, and tried again after so many looks.
_FIRST_STEPS = 20
_TRY_AGAIN = 30


class View:
    """The job, its MFU, and where its metrics go."""

    def __init__(self, run: Path, target: FileTarget | PortTarget | None) -> None:
        self.job = WatchedJob(run)
        self._target = target
        self._mfu_rate: float | None = None
        self._looks = 0
        self.mfu_reason = "too few steps"

    def look(self) -> None:
        """Read what is new, and publish it."""
        self.job.look()
        steps = max((rank.step for rank in self.job.ranks.values()), default=0)
        is_due = self._looks % _TRY_AGAIN == 0 and self._looks <= _TRY_AGAIN
        if self._mfu_rate is None and steps >= _FIRST_STEPS and is_due:
            self._mfu_rate, self.mfu_reason = self.job.mfu_per_token_rate()
        self._looks += steps >= _FIRST_STEPS
        if self._target is not None:
            self._target.publish(to_openmetrics(self.job, self.mfu))

    @property
    def mfu(self) -> float | None:
        """MFU of the last steps."""
        tokens = self.job.per_second("tokens")
        return None if self._mfu_rate is None or tokens is None else self._mfu_rate * tokens


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
    """Show a running job: steps, throughput, MFU, GPUs, late and stalled ranks.

    It reads the ends of the run's files, so that a long run costs no more than a short one. It ends with the job, or by
    Ctrl-C.
    """
    target = None if openmetrics is None else open_target(openmetrics)
    view = View(run, target)
    view.look()
    if once:
        text = print_once(view.job, view.mfu, view.mfu_reason)
        if isinstance(target, PortTarget):
            target.close()
        return Outcome(text=text)
    if not sys.stdout.isatty() and target is None:
        raise PerfscopeError("standard output is no terminal", hint="perfscope watch --once prints one frame")
    _show(view, interval)
    if target is not None:
        target.close()
    return Outcome(text=print_once(view.job, view.mfu, view.mfu_reason))


def _show(view: View, interval: float) -> None:
    """Look until the job ends, or Ctrl-C."""
    console = Console()
    try:
        with Live(console=console, auto_refresh=False, screen=console.is_terminal, transient=True) as live:
            while not view.job.is_over:
                began_s = time.process_time()
                view.look()
                if console.is_terminal:
                    live.update(draw(view.job, view.mfu, view.mfu_reason), refresh=True)
                spent_s = time.process_time() - began_s
                time.sleep(max(interval, spent_s / _LARGEST_SHARE))
    except KeyboardInterrupt:
        return
