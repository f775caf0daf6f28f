"""Workers of Dask that die or have a full disk cost no trace, and no trace is counted twice."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import dask
import pytest
from distributed import LocalCluster

from perfscope.engine.execution import measure_on_dask
from perfscope.engine.measuring import measure
from perfscope.engine.tasks import MeasuredTrace, Task
from perfscope.engine.windows import TraceFiles
from perfscope.errors import PerfscopeError
from tests.conftest import environment
from tests.engine.test_many_traces import files_of, job

pytestmark = pytest.mark.slow

TASK = Task(("breakdown", "kernels"))
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


def has_no_space(files: TraceFiles) -> MeasuredTrace:
    if Path(files.path).name == VICTIM:
        raise OSError(errno.ENOSPC, "No space left on device")
    return measure(files, TASK)


def test_a_failure_in_a_worker_is_named_as_what_it_is(tmp_path: Path) -> None:
    paths = job(tmp_path, 6)
    with cluster(2) as scheduler:
        answers = {answer.path: answer for answer in measure_on_dask(has_no_space, files_of(paths), scheduler)}
    assert sorted(answers) == paths
    (problem,) = answers[paths[4]].damage
    assert problem == f"{paths[4]} could not be measured: OSError: [Errno 28] No space left on device"


def kills_the_scheduler(pid: int, files: TraceFiles) -> MeasuredTrace:
    if Path(files.path).name == VICTIM:
        os.kill(pid, signal.SIGKILL)
        time.sleep(LONGEST_S)
    return measure(files, TASK)


def test_a_scheduler_that_ends_is_said_so(tmp_path: Path) -> None:
    paths = job(tmp_path, 6)
    file = tmp_path / "scheduler.json"
    dask_scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--port", "0"]
    dask_worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny", "--no-dashboard"]
    place = {"--scheduler-file": str(file)}
    words = [word for pair in place.items() for word in pair]
    settings = {**environment(), "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "2s"}
    with (tmp_path / "log").open("wb") as log:
        scheduler = subprocess.Popen([*dask_scheduler, *words], stdout=log, stderr=log, env=settings)
        worker = subprocess.Popen([*dask_worker, *words], stdout=log, stderr=log, env=settings, cwd=tmp_path)
    try:
        deadline = time.monotonic() + LONGEST_S
        while not file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        measuring = partial(kills_the_scheduler, scheduler.pid)
        with (
            dask.config.set({"distributed.comm.timeouts.connect": "2s"}),
            pytest.raises(PerfscopeError, match="the Dask scheduler ended before every trace was measured"),
        ):
            list(measure_on_dask(measuring, files_of(paths), address))
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()
