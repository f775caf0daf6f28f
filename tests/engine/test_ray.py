"""Ray measures what the other engines measure, by the same seam, where it is installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from perfscope.engine.execution import Backend, Execution
from perfscope.engine.measuring import measure
from perfscope.engine.tasks import MeasuredTrace
from perfscope.engine.windows import TraceFiles
from perfscope.errors import UsageError
from tests.conftest import environment, perfscope
from tests.engine.test_dask_workers import TASK, VICTIM, is_first, marks_of
from tests.engine.test_many_traces import groups, job

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


def test_ray_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    job(tmp_path / "traces", 5)
    words = ("--workers", "2", "--format", "json", "traces")
    answer = perfscope("analyze", "--engine", "ray", *words, cwd=tmp_path, RAY_AUTH_MODE="disabled")
    assert answer.code == 0, answer.stderr
    assert answer.stdout == perfscope("analyze", "--engine", "serial", *words, cwd=tmp_path).stdout
    assert "Traceback" not in answer.stderr


def dies(marks: Path, files: TraceFiles) -> MeasuredTrace:
    """Be killed once over one trace, and each time over another."""
    if is_first(marks, files) or Path(files.path).name == "rank001.json.gz":
        os.kill(os.getpid(), signal.SIGKILL)
    if Path(files.path).name == "rank002.json.gz":
        raise OSError(28, "No space left on device")
    return measure(files, TASK)


#: In a process of its own: Ray leaves warnings and threads behind.
PROGRAM = """
import json, sys
from functools import partial
from pathlib import Path
from perfscope.engine import ray_cluster
from tests.engine.test_many_traces import groups
from tests.engine.test_ray import dies
ray_cluster._RETRIES = 1
measuring = partial(dies, Path(sys.argv[1]))
answers = ray_cluster.measure_on_cluster(measuring, groups(sys.argv[2:], 3), {}, 2)
print(json.dumps({Path(answer.path).name: list(answer.damage) for answer in answers}))
"""


def test_a_worker_of_ray_that_dies_costs_no_trace_but_the_one_that_kills_it(tmp_path: Path) -> None:
    paths = job(tmp_path, 6)
    words = [sys.executable, "-c", PROGRAM, str(marks_of(tmp_path)), *paths]
    settings = {**environment(), "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(words, env=settings, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    damage = json.loads(done.stdout.splitlines()[-1])
    assert sorted(damage) == [Path(path).name for path in paths]
    assert VICTIM in damage
    lost = {name: lines[0].partition(": ")[2] for name, lines in damage.items() if lines}
    assert lost == {
        "rank001.json.gz": "its worker was killed, perhaps because memory ran out",
        "rank002.json.gz": "OSError: [Errno 28] No space left on device",
    }


def test_ray_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "perfscope.engine.ray_cluster", raising=False)
    files = [group[0] for group in groups(job(tmp_path, 2))]
    with pytest.raises(UsageError, match="--engine ray needs ray") as error:
        Execution(Backend.RAY, 2).map(partial(measure, task=TASK), files)
    assert error.value.hint == "pip install 'perfscope-toolkit[ray]'"
