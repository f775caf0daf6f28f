"""The files that supply values to ``perfscope plan``: a run, or a training log."""

from __future__ import annotations

from pathlib import Path

from perfscope.commands.plan.log import PlannedLog, read_planned_log
from perfscope.commands.plan.run_comparison import PlannedRun, read_planned_run


def read_run_or_log(run: Path | None, log: Path | None) -> tuple[PlannedRun | None, PlannedLog | None]:
    """Read the run and the log, where there is one.

    Raises:
        SourceError: The folder is no run, or the log cannot be read.
        UsageError: The run completed no step, or the file is no log of a training.
    """
    return read_planned_run(run) if run else None, read_planned_log(log) if log else None
