"""How trainings are started, and that nothing of them outlives its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.bench.launching import Started, TrainingPlace, launch_words, profile_words
from tests.bench.examples import SETTINGS, variant

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
