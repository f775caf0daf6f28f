"""Faults in real trainings are kept and explained, and a running job opens windows; the whole matrix is a benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import postmortem
from benchmarks.postmortem import Case
from perfscope.sources.postmortem import read_post_mortem
from perfscope.watching.job import WatchedJob
from tests.conftest import ROOT, perfscope, profile

pytestmark = pytest.mark.slow

STALLS = """
import time, torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(60):
    weight.grad = torch.ones(1)
    optimizer.step()
    time.sleep(4 if step == 40 else 0.05)  # several looks at the steps before it, and behind it
raise SystemExit(CODE)
"""


def start(run: Path, ranks: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "perfscope", "--quiet", "profile", "-o", str(run), "--exec", "--nvml-hz", "0", "--"]
    words += [sys.executable, str(ROOT / "benchmarks" / "start_ranks.py"), str(ranks)]
    words += [str(ROOT / "benchmarks" / "stopping_training.py"), "ddp", "clean", "--steps", "1000000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def look(run: Path) -> WatchedJob:
    job = WatchedJob(run)
    job.look()
    return job


def steps_by_now(run: Path) -> int:
    job = look(run)
    return min((rank.steps_by_now(job.wall_ns) for rank in job.ranks.values()), default=0)


def ask(run: Path) -> tuple[int, int] | None:
    """Ask for a window; returns its steps where every rank has planned it."""
    ended = perfscope("trigger", str(run), "--steps", "1", "--format", "json", cwd=ROOT)
    answer = json.loads(ended.stdout) if ended.stdout else {}
    return (answer["first"], answer["last"]) if ended.code == 0 else None


def windows(run: Path) -> list[set[tuple[int, int]]]:
    """The windows that each rank has written."""
    ranks = []
    for file in sorted(run.glob("ranks/*/events.jsonl")):
        events = [json.loads(line) for line in file.read_text().splitlines()]
        ranks.append({(event["first_step"], event["last_step"]) for event in events if event["kind"] == "window"})
    return ranks


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not is_so() and time.monotonic() < until_s:
        time.sleep(0.1)


def test_the_right_rank_and_reason(tmp_path: Path) -> None:
    case = Case("ddp", "group", 2, 1)
    result = postmortem.judge(case, postmortem.run_case(case, tmp_path, cuda=False), 0)
    assert result.is_right, result


def test_a_stall_that_ends_is_kept_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STALLS.replace("CODE", "0"))
    options = ["--stall-seconds", "2", "--steps", "1000"]
    ended = profile(sys.executable, "train.py", cwd=tmp_path, run_dir="RUN", options=options)
    assert ended.code == 0
    assert "rank 0 has finished no step for 2 s (limit 2 s)" in ended.stderr
    evidence = read_post_mortem(tmp_path / "RUN")
    state = evidence.ranks[0]
    assert state.has_resumed
    assert state.stack is not None
    assert state.stack.frames[0].line == 8
    answer = perfscope("postmortem", "RUN", "--format", "json", cwd=tmp_path)
    report = json.loads(answer.stdout)
    assert (report["reason"], report["ranks"], report["line"]["line"]) == ("host stall", [0], 8)


def test_every_rank_opens_the_window_at_the_same_step(tmp_path: Path) -> None:
    run = tmp_path / "RUN"
    process = start(run, 2)
    try:
        while not (run / "run.json").is_file() or steps_by_now(run) < 30:
            time.sleep(0.5)
            assert process.poll() is None
        (run / "control" / "window-0000.json").write_text("{half")
        window = ask(run)
        assert window is not None
        while steps_by_now(run) <= window[1] + 2:
            time.sleep(0.2)
        wait_until(lambda: all(window in ranks for ranks in windows(run)))
        wait_until(lambda: len(list((run / "traces").glob("*.pt.trace.json*"))) == 2 * 2)
        assert all(window in ranks for ranks in windows(run))
        assert len(list((run / "traces").glob("*.pt.trace.json*"))) == 2 * 2
        notes = (run / "ranks" / "00000" / "events.jsonl").read_text()
        assert "the request window-0000.json was ignored: it is not JSON" in notes
    finally:
        process.terminate()
        process.wait()
    wait_until(lambda: all(rank.has_ended for rank in look(run).ranks.values()))
    assert all(rank.has_ended for rank in look(run).ranks.values())
    assert "no rank runs any more" in perfscope("trigger", str(run), cwd=ROOT).stderr
