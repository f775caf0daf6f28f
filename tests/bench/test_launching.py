"""How trainings are started, and that nothing of them outlives its end."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.bench import measuring
from perfscope.bench.launching import Started, TrainingPlace, launch_words, profile_words
from perfscope.bench.running import explain_failure
from perfscope.result import to_object
from tests.bench.examples import MACHINE, SETTINGS, variant
from tests.conftest import ROOT

#: A launcher whose rank has a session of its own, as torchrun's have, and which does not heed Ctrl-C.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(rank.pid, flush=True)
time.sleep(600)
"""


def test_one_process_a_device_is_started_by_torchrun_and_one_process_by_python() -> None:
    assert launch_words(variant("ddp", 4), SETTINGS, 1234)[1:-1] == [
        *("-m", "torch.distributed.run", "--nnodes", "1", "--master-port", "1234", "--nproc-per-node", "4")
    ]
    assert len(launch_words(variant("dp", 4), SETTINGS, 1234)) == 2


def test_the_launcher_of_several_hosts_is_filled_in() -> None:
    settings = replace(SETTINGS, launcher="srun -N 2 -n {nproc} --export 'ALL,PORT={port}' python")
    words = launch_words(variant("ddp", 16), settings, 1234)
    assert words[:-1] == ["srun", "-N", "2", "-n", "16", "--export", "ALL,PORT=1234", "python"]
    assert words[-1].endswith("strategies/train.py")


def test_a_training_is_profiled_behind_its_measured_steps(tmp_path: Path) -> None:
    place = TrainingPlace.below(tmp_path, "x")
    words = profile_words(variant("ddp", 2, recompute=True), SETTINGS, place, 1)
    assert words[1:4] == ["-m", "perfscope", "profile"]
    assert words[words.index("--steps") + 1] == "10"  # 3 warm up, 5 are measured, the profiler warms up in one
    assert "--recompute" in words


def test_a_training_that_does_not_end_is_ended_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfscope.bench.launching._PATIENCE_S", 0.2)
    place = TrainingPlace.below(tmp_path, "x")
    place.clear()
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    rank = int(process.stdout.readline())
    training = Started(variant(), place, process, port=1)
    training.train(0.1)
    assert process.poll() is not None  # before the next one trains
    assert training.finish(0.1) is None
    end = time.monotonic() + 60
    while is_running(rank) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_running(rank)
    process.stdout.close()


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


TRACEBACK = """\
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /opt/perfscope/analyzers/whatif/replay.py:256 in sort                         │
╰──────────────────────────────────────────────────────────────────────────────╯
ValueError: the operations are ill
"""


def answer(monkeypatch: pytest.MonkeyPatch, document: object) -> None:
    ended = subprocess.CompletedProcess[str]([], 0, stdout=json.dumps(document), stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)


def trained(folder: Path) -> TrainingPlace:
    """The place of a training of two ranks, whose steps are those of a real run."""
    place = replace(TrainingPlace.below(folder, "ddp"), run_dir=ROOT / "fixtures" / "runs" / "h200_zero1")
    place.result.mkdir(parents=True)
    for rank in (0, 1):
        result = {"losses": [2.0, 1.0], "hits": [], "answers": [], "memory": [{"bytes": 7}], "save_ns": None}
        (place.result / f"rank-{rank:05}.json").write_text(json.dumps(result))
    return place


def crash(monkeypatch: pytest.MonkeyPatch, errors: str) -> None:
    ended = subprocess.CompletedProcess[str]([], 1, stdout="", stderr=errors)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        (TRACEBACK, "perfscope analyze failed: ValueError: the operations are ill"),
        ("perfscope: x holds no run\nhint: name another\n", "x holds no run"),
        ("", "perfscope analyze printed nothing and ended with exit code 1"),
    ],
)
def test_a_training_whose_analysis_fails_is_measured_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errors: str, reason: str
) -> None:
    crash(monkeypatch, errors)
    measured = measuring.measure(variant(), 0, SETTINGS, MACHINE, trained(tmp_path))
    assert measured.reason is None
    assert measured.step_ns
    assert (measured.first_loss, measured.last_loss, measured.memory_bytes) == (2.0, 1.0, (7, 7))
    assert measured.notes[0] == f"not analyzed: {reason}"
    assert measured.shares == {}


def test_a_loss_that_is_no_number_has_a_note_and_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, {"results": {}})
    place = trained(tmp_path)
    for path in place.result.iterdir():
        path.write_text(json.dumps({**json.loads(path.read_text()), "losses": [2.0, math.nan, math.inf]}))
    measured = measuring.measure(variant(), 0, SETTINGS, MACHINE, place)
    assert (measured.first_loss, measured.last_loss, measured.losses) == (2.0, None, (2.0,))
    assert measured.notes[0] == "the loss is no number from step 2 of 3 on"
    json.dumps(to_object(measured), allow_nan=False)


TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 5, in main
[rank1]: {error}
E1122 12:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            "ValueError: Expected more than 1 value per channel",
            "failed: ValueError: Expected more than 1 value per channel",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "out of memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried",
            "out of memory: DefaultCPUAllocator: can't allocate memory: you tried",
        ),
    ],
)
def test_the_error_of_a_rank_is_the_reason(tmp_path: Path, error: str, reason: str) -> None:
    log = tmp_path / "log"
    log.write_text(TORCHRUN.format(error=error))
    assert explain_failure(log, 1, 60) == reason


def test_a_rank_that_was_killed_may_have_run_out_of_memory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("failed (exitcode: -9) local_rank: 0 (pid: 7) of binary: python\n  exitcode  : -9 (pid: 7)\n")
    assert explain_failure(log, 1, 60) == "failed: killed by SIGKILL, as a host kills what it has no memory for"


def test_a_launcher_that_is_missing_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("perfscope: nosuch: command not found\n  hint: nothing was started\n")
    assert explain_failure(log, 127, 60) == "failed: nosuch: command not found"


def test_a_training_that_did_not_end_says_how_long_it_was_given(tmp_path: Path) -> None:
    assert explain_failure(tmp_path / "missing", None, 60) == "failed: it did not end within 60 s"
