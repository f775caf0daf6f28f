"""Checkpoint saves that the hooks timed in a run."""

from __future__ import annotations

from pathlib import Path

from perfscope.errors import SourceError
from perfscope.sources.runs.run import read_run
from perfscope.tables.saves import Saves


def read_run_saves(path: Path) -> Saves:
    """Read the saves of a run's folder.

    Raises:
        SourceError: It is no run, or no save was timed in it.
    """
    saves = read_run(path).saves
    if saves is None:
        raise SourceError(path, "contains no timed checkpoint save", hint="--log reads saves from a training log")
    return saves
