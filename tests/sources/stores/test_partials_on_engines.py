"""Partials in a store that fails, and workers that die over the traces beside them, change no answer on any engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perfscope.engine import taking
from perfscope.engine.execution import Execution
from perfscope.engine.partials_at_capture import store_beside
from perfscope.engine.taking import Taking, answer_each
from perfscope.engine.tasks import MeasuredTrace
from perfscope.engine.windows import TraceFiles
from perfscope.wire.traces import partials_path
from tests.engine.storing import copy_with_partials
from tests.engine.test_dask_workers import (
    TASK,
    VICTIM,
    cluster,
    dies_before_reading,
    dies_in_reading,
    dies_while_sending,
    marks_of,
    require_all,
)
from tests.engine.test_many_traces import job
from tests.sources.stores.conftest import RUN
from tests.sources.stores.faults import ALWAYS, Faults, faulty
from tests.sources.stores.server import ACCESS_KEY, SECRET_KEY
from tests.sources.stores.test_s3 import PARTIALS, TRACES, Ask, answers, ask, say, whole

__all__ = ["ask", "whole"]  # fixtures

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("stores")]

URL = "s3://engines/run"


@pytest.fixture(scope="module")
def server(s3: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a store with a run whose traces have partials, and with a job of which three have none."""
    import s3fs

    store = s3fs.S3FileSystem(key=ACCESS_KEY, secret=SECRET_KEY, endpoint_url=s3, skip_instance_cache=True)
    store.mkdir("engines")  # a bucket of its own: other tests list that of the other runs
    store.put(str(copy_with_partials(RUN, tmp_path_factory.mktemp("run"))), "engines/run", recursive=True)
    folder = tmp_path_factory.mktemp("job")
    for path in job(folder, 9):
        assert store_beside(TraceFiles(path), TASK)
    for rank in (3, 4, 5):
        Path(partials_path(str(folder / f"rank{rank:03d}.json.gz"))).unlink()
    store.put(str(folder), "engines/job", recursive=True)
    yield s3
    store.rm("engines", recursive=True)


#: What a store does to partials, and what is said of it where their trace is at hand.
FAULTS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"throttled": {PARTIALS: ALWAYS}}, "cannot be read: the store refused it each time that it was asked"),
    ({"cut": {PARTIALS: ALWAYS}}, "cannot be read: "),
    ({"shortened": {PARTIALS: ALWAYS}}, ""),
    ({"shortened": {PARTIALS: ALWAYS}, "is_unframed": True}, ""),
)


@pytest.mark.parametrize(("faults", "reason"), FAULTS, ids=str)
def test_the_trace_is_read_where_a_store_keeps_its_partials_back(
    server: str, ask: Ask, whole: str, faults: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with faulty(server, Faults(**faults)) as address:
        analysis = ask(address, URL)
    assert answers(analysis) == whole.replace("runs/zero1", "engines/run")
    (note,) = analysis.notes
    assert note.startswith(f"{URL}/traces/{PARTIALS} {reason}")
    assert note.endswith(": its trace is read")
    assert not analysis.damage


@pytest.mark.parametrize("lost", [f"traces/{TRACES[2]}", f"traces/{PARTIALS}"])
def test_a_trace_is_answered_for_if_a_store_has_lost_it_or_its_partials(
    server: str, ask: Ask, whole: str, lost: str
) -> None:
    """Partials are listed, but not there: their trace is read. So is what is left of a trace: nothing."""
    with faulty(server, Faults(lost=lost)) as address:
        analysis = ask(address, URL)
    if lost.endswith(".partials"):
        assert answers(analysis) == whole.replace("runs/zero1", "engines/run")
    else:
        assert analysis.damage[0] == f"{URL}/{lost} cannot be read: it does not exist"
        assert analysis.damage[1].startswith("1 of 4 ranks have no trace")


@pytest.mark.parametrize("fault", [*(faults for faults, _ in FAULTS[1:]), {"lost": TRACES[2]}], ids=str)
def test_dask_says_what_one_process_says_of_a_store_that_fails_beside_partials(
    server: str, keys: dict[str, str], tmp_path: Path, fault: dict[str, Any]
) -> None:
    variables = {**keys, "AWS_MAX_ATTEMPTS": "1"}
    with (
        faulty(server, Faults(**fault)) as address,
        cluster(2, variables=variables | {"AWS_ENDPOINT_URL": address}) as scheduler,
    ):
        spread = say(address, URL, variables, tmp_path, "--dask", scheduler)
    with faulty(server, Faults(**fault)) as address:
        alone = say(address, URL, variables, tmp_path, "--workers", "1")
    said = [line for line in spread.stderr.splitlines() if "the cluster has no worker" not in line]
    assert (spread.code, spread.stdout) == (alone.code, alone.stdout)
    assert said == alone.stderr.splitlines()
    assert said


@pytest.mark.usefixtures("ask")
@pytest.mark.parametrize("dies", [dies_before_reading, dies_in_reading, dies_while_sending])
def test_a_worker_that_dies_at_any_stage_beside_partials_costs_no_trace(
    server: str,
    tmp_path: Path,
    dies: Callable[[Path, TraceFiles], MeasuredTrace],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    marks = marks_of(tmp_path)
    monkeypatch.setattr(taking, "measuring", lambda _: partial(dies, marks))
    paths = [f"s3://engines/job/rank{rank:03d}.json.gz" for rank in range(9)]
    assert VICTIM in paths[4]
    taken = Taking()
    files = [TraceFiles(path) for path in paths]
    measured = [answer.measured for answer in answer_each(Execution(2), files, TASK, {}, taken)]
    require_all(measured, paths)
    assert taken.taken == 6
    assert len(list(marks.iterdir())) == 1
