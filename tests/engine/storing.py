"""Runs with partials beside their traces, as the analysis that ends a profile leaves them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest import mock

from perfscope.engine.run import Plan, analyze
from perfscope.sources.traces.files import find_traces
from perfscope.wire.traces import STORE_VARIABLE


def copy_with_partials(run: Path, folder: Path) -> Path:
    """A copy of a run whose traces have partials."""
    copy = shutil.copytree(run, folder / run.name)
    store_partials(copy)
    return copy


def store_partials(run: Path) -> None:
    """Store the partials of all traces of a run."""
    with mock.patch.dict(os.environ, {STORE_VARIABLE: "1"}):
        analyze([run], Plan(is_fresh=True))


def without_traces(run: Path) -> Path:
    """The same run, as it is where the traces stayed on their hosts."""
    for trace in find_traces([str(run / "traces")]):
        Path(trace).unlink()
    return run
