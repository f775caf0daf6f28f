"""A running job is seen by the ends of its files: what is new is read once, and a look at a long run is as short."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser

from benchmarks import kept_run
from perfscope.analyzers.mfu import analyze
from perfscope.sources.runs.run import read_run
from perfscope.watching.job import RECENT, WatchedJob
from perfscope.watching.openmetrics import to_openmetrics
from perfscope.watching.screen import print_once
from perfscope.wire.records import RankRecord, StepRecord, to_line
from tests.conftest import ROOT

MS = 10**6
parse: Callable[[str], Iterator[Any]] = parser.text_string_to_metric_families


class Job:
    """A run that grows."""

    def __init__(self, folder: Path, ranks: int = 2) -> None:
        self.folder = folder
        self.now_ns = time.time_ns()
        (folder / "ranks").mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        for rank in range(ranks):
            record = RankRecord(rank, ranks, "node", 1000 + rank, self.now_ns, 0, "3.11")
            (folder / "ranks" / f"{rank:05d}").mkdir()
            (folder / "ranks" / f"{rank:05d}" / "rank.json").write_bytes(to_line(record))

    def add_steps(self, rank: int, first: int, last: int, *, ms: int = 100, **fields: Any) -> None:
        with (self.folder / "ranks" / f"{rank:05d}" / "steps.jsonl").open("ab") as file:
            for step in range(first, last + 1):
                record = StepRecord(step, step * ms * MS, "optimizer", ms * MS, samples=4, tokens=400, **fields)
                file.write(to_line(record))

    def add_line(self, rank: int, name: str, line: str) -> None:
        with (self.folder / "ranks" / f"{rank:05d}" / name).open("a") as file:
            file.write(line + "\n")


def look(job: Job) -> WatchedJob:
    watched = WatchedJob(job.folder)
    watched.look()
    return watched


def test_steps_rates_and_ages_are_those_of_the_last_steps(tmp_path: Path) -> None:
    job = Job(tmp_path / "RUN")
    for rank in range(2):
        job.add_steps(rank, 1, 50, ms=100)
        job.add_steps(rank, 51, 50 + RECENT, ms=200)
    watched = look(job)
    assert [rank.step for rank in watched.ranks.values()] == [150, 150]
    assert watched.step_ns() == 200 * MS
    assert watched.per_second("samples") == 2 * 4 / 0.2
    assert watched.per_second("tokens") == 2 * 400 / 0.2


def test_damaged_lines_cost_no_view(tmp_path: Path) -> None:
    job = Job(tmp_path / "RUN", ranks=1)
    job.add_steps(0, 1, 50)
    (job.folder / "nvml").mkdir()
    (job.folder / "deaths").mkdir()
    for name in ("incidents.jsonl", "events.jsonl", "steps.jsonl", "../../nvml/a.jsonl", "../../deaths/a.jsonl"):
        job.add_line(0, name, "[" * 20_000)
    (job.folder / "run.json").write_text("[" * 20_000)
    assert look(job).step_ns() == 100 * MS
    job.add_line(0, "steps.jsonl", f'{{"step":51,"end_ns":{10**40},"source":"optimizer","wall_ns":5}}')
    assert "step 51" in print_once(look(job))


def test_mfu_is_that_of_the_analyzer() -> None:
    run = kept_run(ROOT / "fixtures" / "findings" / "h200" / "ddp_clean")
    watched = WatchedJob(run)
    watched.look()
    assert watched.mfu == pytest.approx(analyze(read_run(run)).headline.mfu)


def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    job = Job(tmp_path / "RUN", ranks=1)
    (job.folder / "nvml").mkdir()
    for name in ("ranks/00000/steps.jsonl", "ranks/00000/events.jsonl", "nvml/node.jsonl"):
        os.mkfifo(job.folder / name)
    assert look(job).step_ns() is None
    assert "no step" not in print_once(look(job))


def test_a_rank_that_its_watchdog_says_is_stalled_is_until_it_resumes(tmp_path: Path) -> None:
    job = Job(tmp_path / "RUN")
    for rank in range(2):
        job.add_steps(rank, 1, 5)
    watched = look(job)
    assert not any(watched.is_stalled(rank) for rank in watched.ranks.values())
    job.add_line(1, "incidents.jsonl", '{"kind":"stall","number":1}')
    watched.look()
    assert [watched.is_stalled(rank) for rank in watched.ranks.values()] == [False, True]
    assert "rank 1 finish no step" in print_once(watched)
    job.add_line(1, "incidents.jsonl", '{"kind":"resumed","number":1}')
    watched.look()
    assert not any(watched.is_stalled(rank) for rank in watched.ranks.values())


def test_a_killed_rank_has_ended_and_the_job_is_over_minutes_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed writes no end of its own; another one of its host notes it, with its last calls."""
    job = Job(tmp_path / "RUN")
    for rank in range(2):
        job.add_steps(rank, 1, 5)
    watched = look(job)
    (job.folder / "deaths").mkdir()
    death = {"kind": "death", "attempt": 0, "pid": 1000, "wall_ns": job.now_ns, "monotonic_ns": 0, "signal": 9}
    deaths = [json.dumps(death | {"rank": rank}).encode() + b"\n" for rank in range(2)]
    with (job.folder / "deaths" / "node.jsonl").open("ab") as file:
        file.write(b'{"kind":"xid","code":79}\n' + deaths[0])
        file.flush()
        for _ in range(9):  # new files are looked for from time to time
            watched.look()
        assert [rank.has_ended for rank in watched.ranks.values()] == [True, False]
        file.write(deaths[1] + b'{"half')
    watched.look()
    assert "0 of 2 ranks run" in print_once(watched)
    assert all(rank.has_ended for rank in look(job).ranks.values())
    assert not watched.is_over, "a launcher may start them again"
    later_ns = time.monotonic_ns() + 400 * 10**9
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    assert watched.is_over
    again = job.folder / "ranks" / "00001.1"
    shutil.copytree(job.folder / "ranks" / "00001", again)
    for _ in range(9):
        watched.look()
    assert not watched.is_over
    assert [rank.has_ended for rank in watched.ranks.values()] == [True, False]


def test_a_run_without_steps_and_one_that_has_ended_are_shown(tmp_path: Path) -> None:
    job = Job(tmp_path / "RUN")
    text = print_once(look(job))
    assert "2 of 2 ranks run" in text
    assert "MFU n/a (too few steps)" in text
    (job.folder / "run.json").write_text('{"exit_status": "ended with exit code 0"}')
    assert "the command ended with exit code" in " ".join(print_once(look(job)).split())


GPU = {"uuid": "GPU-1", "name": "NVIDIA H200", "index": 0, "memory_total_bytes": 150_000_000_000}
SAMPLE = {"power_mw": 650_000, "gpu_util_percent": 98, "memory_used_bytes": 90_000_000_000, "temperature_c": 61}


def with_gpu(job: Job) -> None:
    lines = [{"host": "node", "hz": 5, "gpus": [GPU]}, {"t_ns": 1, "gpus": [SAMPLE]}, {"t_ns": 2, "lost": "GPU-2"}]
    (job.folder / "nvml").mkdir()
    (job.folder / "nvml" / "node.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_gpus_show_their_last_sample(tmp_path: Path) -> None:
    job = Job(tmp_path / "RUN")
    with_gpu(job)
    assert "NVIDIA H200  98 %  90.0 GB  650 W" in print_once(look(job))


def test_prometheus_reads_the_metrics(tmp_path: Path) -> None:
    job = Job(tmp_path / 'R"U\\N', ranks=3)
    with_gpu(job)
    for rank in range(3):
        job.add_steps(rank, 1, 30)
    text = to_openmetrics(look(job))
    families = {family.name: family for family in parse(text)}
    values = {
        name: {sample.labels.get("rank"): sample.value for sample in family.samples}
        for name, family in families.items()
    }
    assert values["perfscope_steps"] == {"0": 30, "1": 30, "2": 30}
    assert families["perfscope_steps"].type == "counter"
    assert values["perfscope_step_seconds"] == {None: 0.1}
    assert "perfscope_mfu_ratio" not in values
    assert values["perfscope_gpu_utilization_ratio"] == {None: 0.98}
    assert values["perfscope_gpu_power_watts"] == {None: 650.0}
    assert families["perfscope_step_age_seconds"].unit == "seconds"
