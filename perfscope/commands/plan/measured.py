"""The measured steps of ``--calibrate``: tables, logs of trainings and runs of ``perfscope profile``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfscope.errors import UsageError
from perfscope.sources.step_times import is_step_table, read_step_times
from perfscope.tables.step_time import MeasuredStep, MeasuredSteps


def read_measured(paths: Sequence[Path]) -> MeasuredSteps:
    """Read tables of measured steps; UsageError where a path is no table."""
    rows: list[MeasuredStep] = []
    refused: list[tuple[str, str]] = []
    for path in paths:
        if not is_step_table(path):
            raise UsageError(f"{path} is no table of measured steps")
        steps = read_step_times(path)
        rows += steps.rows
        refused += steps.refused
    if not rows:
        raise UsageError("no measured step was read", hint="; ".join(reason for _, reason in refused[:1]) or None)
    return MeasuredSteps(tuple(rows), tuple(refused))
