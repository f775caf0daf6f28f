"""Many traces: one process, several, or Dask; workers that die, ranks that are missing, and where traces may lie."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

from perfscope.engine.execution import measure_in_processes, measure_on_dask
from perfscope.engine.measuring import measure
from perfscope.engine.run import Analysis, analyze
from perfscope.engine.tasks import MeasuredTrace, MeasureTask
from perfscope.engine.windows import TraceFiles
from perfscope.errors import SourceError, UsageError
from tests.conftest import ROOT, perfscope
from tests.engine.copies import copies
from tests.sources.traces.making import call, distributed, kernel, step, write

pytestmark = pytest.mark.slow

FIXTURES = ROOT / "fixtures" / "traces"
TASK = MeasureTask(("breakdown", "kernels"))


def job(folder: Path, ranks: int, *, world: int | None = None) -> list[str]:
    """A small trace a rank."""
    paths = []
    for rank in range(ranks):
        events = [
            step(1, 0, 1000),
            call("cudaLaunchKernel", 10, 20, launch=1),
            kernel("gemm", 100, 200 + rank, launch=1),
            kernel("ncclDevKernel_AllReduce_Sum_f32()", 200, 400, stream=20),
        ]
        paths.append(str(write(folder / f"rank{rank:03d}.json.gz", events, **distributed(rank, world or ranks))))
    return paths


def cut(path: str | Path, kept: float = 0.5) -> None:
    """Take away the end of a file."""
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: int(len(content) * kept)])


def told(*arguments: str | Path, cwd: Path) -> str:
    answer = perfscope("analyze", "--format", "json", *arguments, cwd=cwd)
    assert answer.code in (0, 4), answer.stderr
    return answer.stdout


def test_one_process_several_and_dask_give_the_same_bytes_over_copies_of_which_one_is_cut_short(tmp_path: Path) -> None:
    copies(tmp_path / "traces", 8, cut=4)
    alone = told("--workers", "1", "traces", cwd=tmp_path)
    assert told("--workers", "2", "traces", cwd=tmp_path) == alone
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        assert told("--dask", cluster.scheduler_address, tmp_path / "traces", cwd=tmp_path) == told(
            "--workers", "1", tmp_path / "traces", cwd=tmp_path
        )
    document = json.loads(alone)
    ranks = document["results"]["breakdown"]["ranks"]
    assert [(entry["rank"], entry["damaged"]) for entry in ranks] == [(rank, rank == 4) for rank in range(8)]
    assert any("rank00004.pt.trace.json.gz: its gzip stream is cut off" in line for line in document["warnings"])
    assert document["results"]["collectives"]["operations"][0]["group_size"] == 8


def files_of(paths: Sequence[str]) -> list[TraceFiles]:
    return [*map(TraceFiles, paths)]


def breaks_on(victim: str, marks: Path, files: TraceFiles) -> MeasuredTrace:
    """Measure a trace, but be killed the first time over one of them."""
    mark = marks / Path(files.path).name
    if Path(files.path).name == victim and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(files, TASK)


def dies_over(victim: str, files: TraceFiles) -> MeasuredTrace:
    """Measure a trace, but be killed each time over one of them."""
    if Path(files.path).name == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(files, TASK)


@pytest.mark.parametrize("place", ["processes", "Dask"])
def test_a_worker_that_is_killed_costs_no_trace(place: str, tmp_path: Path) -> None:
    paths = job(tmp_path, 12)
    marks = tmp_path / "marks"
    marks.mkdir()
    measure_all = partial(breaks_on, "rank005.json.gz", marks)
    if place == "Dask":
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
            answers = list(measure_on_dask(measure_all, files_of(paths), cluster.scheduler_address))
    else:
        answers = list(measure_in_processes(measure_all, files_of(paths), 2))
    assert sorted(answer.path for answer in answers) == paths
    assert all(answer.summary is not None for answer in answers)
    assert [mark.name for mark in marks.iterdir()] == ["rank005.json.gz"]


def test_a_trace_that_kills_every_worker_is_reported_and_the_others_are_answered_for(tmp_path: Path) -> None:
    paths = job(tmp_path, 12)
    measured = measure_in_processes(partial(dies_over, "rank005.json.gz"), files_of(paths), 2)
    answers = {answer.path: answer for answer in measured}
    lost = [path for path, answer in answers.items() if answer.summary is None]
    assert lost == [paths[5]]
    assert answers[paths[5]].damage == (
        f"{paths[5]} could not be measured: its worker was killed, perhaps because memory ran out",
    )
    assert sorted(answers) == paths


def analyzed(*paths: str | Path) -> Analysis:
    return analyze(paths)


def ranks(analysis: Analysis) -> list[Any]:
    data: Any = analysis.results["breakdown"].data()
    return [entry["rank"] for entry in data["ranks"]]


def test_a_damaged_rank_is_reported_and_the_others_are_answered_for(tmp_path: Path) -> None:
    paths = job(tmp_path, 4)
    cut(paths[2])
    Path(paths[3]).write_bytes(b"")
    analysis = analyzed(tmp_path)
    assert [rank for rank in ranks(analysis) if rank in (0, 1)] == [0, 1]
    assert any("rank003.json.gz is empty" in line for line in analysis.damage)
    assert any("gzip stream is cut off" in line for line in analysis.damage)
    assert any("1 of 4 ranks have no trace: 3" in line for line in analysis.damage)


def test_a_trace_that_breaks_an_analyzer_leaves_the_other_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(trace: Any) -> None:
        raise IndexError("out of bounds")

    monkeypatch.setattr("perfscope.analyzers.idle.measure", breaks)
    (path,) = job(tmp_path, 1)
    analysis = analyzed(path)
    assert ranks(analysis) == [0]
    assert analysis.damage == (f"{path}: idle could not measure it: IndexError: out of bounds",)


def test_missing_ranks_are_named_unless_one_trace_was_meant(tmp_path: Path) -> None:
    paths = job(tmp_path, 3, world=5)
    assert analyzed(*paths).damage == ("2 of 5 ranks have no trace: 3, 4",)
    assert analyzed(paths[1]).damage == ()


def test_the_rank_may_be_given(tmp_path: Path) -> None:
    for name in ("worker-a7.json", "worker-b9.json"):
        write(tmp_path / name, [kernel("gemm", 0, 10)])
    pattern = json.loads(told("--rank", r"worker-\w(\d)", ".", cwd=tmp_path))
    assert [entry["rank"] for entry in pattern["results"]["breakdown"]["ranks"]] == [7, 9]
    number = json.loads(told("--rank", "5", "worker-a7.json", cwd=tmp_path))
    assert [entry["rank"] for entry in number["results"]["breakdown"]["ranks"]] == [5]
    unknown = perfscope("analyze", ".", cwd=tmp_path)
    assert unknown.code == 4
    assert "2 traces state no rank" in unknown.stderr


@pytest.mark.parametrize("pattern", ["worker", "(a)(b)", "("])
def test_a_rank_pattern_that_cannot_work_is_refused(tmp_path: Path, pattern: str) -> None:
    job(tmp_path, 1)
    answer = perfscope("analyze", "--rank", pattern, ".", cwd=tmp_path)
    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr.startswith("perfscope: --rank")


def test_a_folder_may_hold_other_json(tmp_path: Path) -> None:
    job(tmp_path, 2)
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    assert analyzed(tmp_path).damage == ()
    (tmp_path / "rank9.trace.json").write_text('{"lr": 0.1}')
    assert any("rank9.trace.json is not a trace" in line for line in analyzed(tmp_path).damage)


def test_traces_are_read_through_fsspec(tmp_path: Path) -> None:
    import fsspec

    store = fsspec.filesystem("memory")
    for path in job(tmp_path, 2):
        store.pipe(f"/bucket/run/{Path(path).name}", Path(path).read_bytes())
    try:
        assert ranks(analyzed("memory://bucket/run")) == [0, 1]
        assert ranks(analyzed("memory://bucket/run/*1.json.gz")) == [1]
        assert ranks(analyzed("memory://bucket/run/rank000.json.gz")) == [0]
        with pytest.raises(SourceError, match="memory://bucket/nothing does not exist"):
            analyzed("memory://bucket/nothing")
    finally:
        store.rm("/bucket", recursive=True)
    with pytest.raises(UsageError, match="nosuch://x cannot be opened"):
        analyzed("nosuch://x")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--workers", "2", "--dask", "tcp://127.0.0.1:1"], "the cluster of --dask has its own"),
        (["--workers", "0"], "--workers must be at least 1"),
        (["--only", "brekdown"], "there is no analyzer brekdown"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, words: Sequence[str], problem: str) -> None:
    job(tmp_path, 1)
    answer = perfscope("analyze", *words, ".", cwd=tmp_path)
    assert answer.code == 2
    assert problem in answer.stderr
    assert "Traceback" not in answer.stderr
