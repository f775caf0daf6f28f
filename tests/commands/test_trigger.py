"""`perfscope trigger` asks a running job, and says in one line why it cannot ask another one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.watching.job import WatchedJob
from perfscope.wire.records import RankRecord, StepRecord, to_line
from perfscope.wire.requests import WindowRequest
from tests.conftest import ROOT, perfscope

MS = 10**6


def make_run(folder: Path, ranks: int = 2, *, steps: int = 100, ms: int = 50, age_s: float = 0, **facts: Any) -> Path:
    """A job that has just finished a step, or has some seconds ago."""
    (folder / "ranks").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(facts))
    began_ns = time.time_ns() - steps * ms * MS - int(age_s * 1e9)
    for rank in range(ranks):
        target = folder / "ranks" / f"{rank:05d}"
        target.mkdir()
        (target / "rank.json").write_bytes(to_line(RankRecord(rank, ranks, "node", 1, began_ns, 0, "3.11")))
        lines = [to_line(StepRecord(step, step * ms * MS, "optimizer", ms * MS)) for step in range(1, steps + 1)]
        (target / "steps.jsonl").write_bytes(b"".join(lines))
        os.utime(target / "steps.jsonl", (time.time() - max(age_s, 0),) * 2)
    return folder


def answer(run: Path, statuses: dict[int, str]) -> None:
    """What ranks do when the request has appeared."""
    while not list(run.glob("control/window-*.json")):
        time.sleep(0.02)
    (name,) = (path.name for path in run.glob("control/window-*.json"))
    for rank, status in statuses.items():
        line = {"request": name, "status": status, "step": 101, "reason": None if status == "planned" else "too late"}
        (run / "ranks" / f"{rank:05d}" / "answers.jsonl").write_text(json.dumps(line) + "\n")


def ask(run: Path, statuses: dict[int, str], *words: str) -> Any:
    thread = threading.Thread(target=answer, args=(run, statuses), daemon=True)
    thread.start()
    return perfscope("trigger", str(run), "--format", "json", *words, cwd=run.parent)


def test_all_ranks_get_one_step_far_enough_ahead(tmp_path: Path) -> None:
    run = make_run(tmp_path / "RUN")
    ended = ask(run, {0: "planned", 1: "planned"}, "--ranks", "1", "--steps", "2", "--record", "stack")
    assert ended.code == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["last"] == report["first"] + 1
    assert 100 + 4000 / 50 < report["first"] < 100 + 4000 / 50 + 400
    request = json.loads((run / "control" / "window-0001.json").read_bytes())
    assert (request["ranks"], request["stack"], request["shapes"], request["light"]) == ([1], True, False, False)


def test_a_rank_that_learns_too_late_says_so(tmp_path: Path) -> None:
    ended = ask(make_run(tmp_path / "RUN"), {0: "planned", 1: "late"})
    assert ended.code == 1
    assert json.loads(ended.stdout)["ranks"][1] == {"rank": 1, "status": "late", "step": 101, "reason": "too late"}


def refused(run: Path, *words: str) -> str:
    ended = perfscope("trigger", str(run), *words, cwd=run.parent)
    assert ended.code in (1, 2)
    assert ended.stdout == ""
    first, *rest = ended.stderr.splitlines()
    assert all(line.startswith("  hint:") for line in rest)
    return first


def test_a_finished_run_is_asked_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "RUN", exit_status="ended with exit code 1")
    assert "has ended: the command ended with exit code 1" in refused(run)
    assert not (run / "control").exists()


def test_a_run_whose_ranks_are_dead_is_asked_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "RUN")
    (run / "deaths").mkdir()
    deaths = [json.dumps({"kind": "death", "rank": rank, "attempt": 0, "wall_ns": 1}) for rank in range(2)]
    (run / "deaths" / "node.jsonl").write_text("\n".join(deaths) + "\n")
    assert "no rank runs any more" in refused(run)


def test_a_run_that_stands_still_is_asked_nothing(tmp_path: Path) -> None:
    assert "no rank has finished a step for 3,60" in refused(make_run(tmp_path / "RUN", age_s=3600))


def test_a_run_without_steps_is_asked_nothing(tmp_path: Path) -> None:
    assert "has not finished a step yet" in refused(make_run(tmp_path / "RUN", steps=0))


def test_ranks_that_there_are_not_are_refused(tmp_path: Path) -> None:
    assert "there is no rank 5-6 among 2" in refused(make_run(tmp_path / "RUN"), "--ranks", "0,5-6")
    assert "names no ranks" in refused(make_run(tmp_path / "RUN2"), "--ranks", "a")


def test_another_folder_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is not a run" in refused(tmp_path / "empty")


def test_one_window_at_a_time(tmp_path: Path) -> None:
    run = make_run(tmp_path / "RUN")
    assert WatchedJob(run).publish("window-0001.json", WindowRequest(300, 302, 1))
    assert "a window on steps 300-302 is asked for already" in refused(run)


def test_of_two_requests_of_one_name_one_is_written(tmp_path: Path) -> None:
    job = WatchedJob(make_run(tmp_path / "RUN"))
    written = [job.publish("window-0001.json", WindowRequest(first, first, 1)) for first in (300, 400)]
    assert written == [True, False]
    assert job.read_requests()["window-0001.json"].first == 300
    assert [path.name for path in (tmp_path / "RUN" / "control").iterdir()] == ["window-0001.json"]


def test_a_malformed_request_does_not_stop_another_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "RUN")
    (run / "control").mkdir()
    (run / "control" / "window-x.json").write_text("{half")
    assert WatchedJob(run).read_requests() == {}


def test_a_clock_that_was_set_forward_makes_no_step_old(tmp_path: Path) -> None:
    """The process began by a clock that was two hours behind; its records come every two seconds since."""
    run = make_run(tmp_path / "RUN", age_s=7200)
    for rank in range(2):
        os.utime(run / "ranks" / f"{rank:05d}" / "steps.jsonl")
    ended = ask(run, {0: "planned", 1: "planned"})
    assert ended.code == 0, ended.stderr
    assert 100 < json.loads(ended.stdout)["first"] < 1000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_an_error_of_one_line_and_leaves_nothing_half_written(small_disk: Path) -> None:
    run = make_run(small_disk / "RUN", steps=50)
    (run / "control").mkdir()
    free_bytes = shutil.disk_usage(small_disk).free
    (run / "filler").write_bytes(bytes(free_bytes))
    assert "No space left on device" in refused(run)
    assert list((run / "control").iterdir()) == []


def test_two_commands_at_once_open_one_window(tmp_path: Path) -> None:
    run = make_run(tmp_path / "RUN")
    threading.Thread(target=answer, args=(run, {0: "planned", 1: "planned"}), daemon=True).start()
    command = [sys.executable, "-m", "perfscope", "trigger", str(run)]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in started]
    assert sorted(process.returncode for process in started) == [0, 1], said
    assert any("asked for already" in text or "asked for at the same time" in text for text in said), said
    assert [path.name for path in (run / "control").glob("*")] == ["window-0001.json"]
