"""Workers of Dask that die or have a full disk cost no trace, and no trace is counted twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import dask
import pytest
from distributed import LocalCluster

from perfscope.engine.execution import measure_on_dask
from perfscope.engine.measuring import measure
from perfscope.engine.tasks import MeasuredTrace, MeasureTask
from perfscope.engine.windows import TraceFiles
from tests.engine.test_many_traces import files_of, job

pytestmark = pytest.mark.slow

TASK = MeasureTask(("breakdown", "kernels"))
VICTIM = "rank004.json.gz"
LONGEST_S = 60


@contextmanager
def cluster(workers: int, folder: Path | None = None, variables: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of a Dask cluster on this machine."""
    # A test's disk is full: what a worker measures is small, and needs no disk.
    spilling = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}
    place = {"local_directory": folder, "dashboard_address": ":0", "env": dict(variables or {})}
    with dask.config.set(spilling), LocalCluster(n_workers=workers, threads_per_worker=1, **place) as local:
        yield local.scheduler_address


def is_first(marks: Path, files: TraceFiles) -> bool:
    """Whether a trace is the victim, and this is the first time that it is measured; a mark says by which process."""
    mark = marks / f"{Path(files.path).name}.{os.getpid()}"
    if Path(files.path).name != VICTIM or list(marks.iterdir()):
        return False
    mark.touch()
    return True


def dies_before_reading(marks: Path, files: TraceFiles) -> MeasuredTrace:
    if is_first(marks, files):
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(files, TASK)


def marks_of(tmp_path: Path) -> Path:
    marks = tmp_path / "marks"
    marks.mkdir()
    return marks


def require_all(answers: Sequence[MeasuredTrace], paths: Sequence[str]) -> None:
    """Each trace is measured, and counted once."""
    assert sorted(answer.path for answer in answers) == sorted(paths)
    assert all(answer.summary is not None for answer in answers)


def test_a_worker_that_dies_costs_no_trace(tmp_path: Path) -> None:
    paths = job(tmp_path, 9)
    marks = marks_of(tmp_path)
    with cluster(2) as scheduler:
        require_all(list(measure_on_dask(partial(dies_before_reading, marks), files_of(paths), scheduler)), paths)
    assert len(list(marks.iterdir())) == 1


def dies_always(files: TraceFiles) -> MeasuredTrace:
    if Path(files.path).name == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(files, TASK)


def test_a_trace_that_kills_every_worker_is_named_and_the_others_are_answered_for(tmp_path: Path) -> None:
    paths = job(tmp_path, 6)
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), cluster(2) as scheduler:
        answers = {answer.path: answer for answer in measure_on_dask(dies_always, files_of(paths), scheduler)}
    assert sorted(answers) == paths
    assert [path for path, answer in answers.items() if answer.summary is None] == [paths[4]]
    assert "its worker was killed" in answers[paths[4]].damage[0]
