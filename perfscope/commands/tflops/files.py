"""The files that measured the step of ``perfscope tflops``: its log and its trace."""

from __future__ import annotations

from pathlib import Path

from perfscope.commands.tflops.log import StepLog, read_step_log
from perfscope.commands.tflops.trace import TracedStep, read_traced_step


def read_log_and_trace(log: Path | None, trace: Path | None) -> tuple[StepLog | None, TracedStep | None]:
    """Read the log and the trace, where there is one.

    Raises:
        SourceError: A file cannot be read.
        UsageError: A file is no log of a training, or a trace without shapes.
    """
    return read_step_log(log) if log else None, read_traced_step(trace) if trace else None
