"""Ranks that share GPUs are hosts of their own, each with its part of a device, and trainings take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.many_gpus import Series, runs_of
from benchmarks.pipeline_runs import SHARED, TINY, Framework, Setting
from benchmarks.processes import ROOT
from benchmarks.shared_gpus import equal_shares, sharing
from benchmarks.start_ranks import list_gpus, rank_environment

START_RANKS = ROOT / "benchmarks" / "start_ranks.py"
QUARTERS = (25, 25, 25, 25)
_PLACE = """
import json, os, pathlib, sys
names = ("LOCAL_RANK", "WORLD_SIZE", "NCCL_HOSTID", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_VISIBLE_DEVICES")
pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps({name: os.environ.get(name) for name in names}))
"""
_TRAINING = """
import sys, time
from torch import distributed, ones
distributed.init_process_group("gloo")
began = time.monotonic_ns()
for _ in range(3):
    distributed.all_reduce(ones(4))
    time.sleep(0.1)
if distributed.get_rank() == 0:
    with open(sys.argv[1], "a") as file:
        file.write(f"{began} {time.monotonic_ns()}\\n")
distributed.destroy_process_group()
"""
#: A control program that knows "quit", and is told it at the end.
_CONTROL = """#!/bin/sh
if [ "$1" = -f ]; then touch "$CUDA_MPS_PIPE_DIRECTORY/control"; echo $$ > "$TOLD.pid"; exec sleep 60; fi
cat >> "$TOLD"; kill $(cat "$TOLD.pid")
"""
_STAGE = """
import os, time
from torch import nn
time.sleep = lambda seconds: print("rank", os.environ["RANK"], "waits", seconds)
class Part(nn.Linear): pass
Part(2, 2)(__import__("torch").ones(2))
"""


def started(*words: str) -> list[str]:
    return [sys.executable, str(START_RANKS), *words]


def test_ranks_of_one_gpu_have_equal_shares_of_it() -> None:
    assert equal_shares(4, 1) == QUARTERS
    assert equal_shares(4, 2) == (50, 50, 50, 50)
    assert equal_shares(2, 4) == (100, 100)
    assert equal_shares(3, 0) == (33, 33, 33)


def test_a_rank_that_shares_a_gpu_is_a_host_of_its_own() -> None:
    places = [rank_environment(rank, 4, (25, 25, 12, 25), ["0", "1"]) for rank in range(4)]
    assert {place["LOCAL_RANK"] for place in places} == {"0"}
    assert len({place["NCCL_HOSTID"] for place in places}) == 4
    assert [place["CUDA_VISIBLE_DEVICES"] for place in places] == ["0", "0", "1", "1"]
    assert [place["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for place in places] == ["25", "25", "12", "25"]


def test_ranks_that_share_nothing_are_on_one_host() -> None:
    assert rank_environment(1, 2, (), ["0"]) == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }


def test_a_share_of_a_gpu_of_its_own_leaves_a_rank_on_its_host() -> None:
    assert rank_environment(1, 2, (100, 50), ["0", "1"]) == {
        **rank_environment(1, 2, (), ["0", "1"]),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
    }


def test_chosen_gpus_are_those_that_are_shared() -> None:
    assert list_gpus({"CUDA_VISIBLE_DEVICES": "3,5"}) == ["3", "5"]


def test_each_rank_is_told_its_share(tmp_path: Path) -> None:
    script = tmp_path / "place.py"
    script.write_text(_PLACE)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "7"}
    subprocess.run(started("--share", "50,12", "2", str(script), str(tmp_path)), check=True, env=environment)
    second = json.loads((tmp_path / "1").read_text())
    assert second == {
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "NCCL_HOSTID": "host1",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12",
        "CUDA_VISIBLE_DEVICES": "7",
    }


def test_ranks_without_a_share_are_refused(tmp_path: Path) -> None:
    ended = subprocess.run(
        started("--share", "50", "2", str(tmp_path / "none.py")), check=False, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "2 ranks, and shares for 1" in ended.stderr


@pytest.mark.slow
def test_trainings_that_start_together_train_in_turn(tmp_path: Path) -> None:
    script, trained = tmp_path / "training.py", tmp_path / "trained"
    script.write_text(_TRAINING)
    words = started("--share", "50,50", "--turn", str(tmp_path / "turn"), "2", str(script), str(trained))
    trainings = [subprocess.Popen(words) for _ in range(2)]
    assert [training.wait(200) for training in trainings] == [0, 0]
    times = sorted([int(word) for word in line.split()] for line in trained.read_text().splitlines())
    assert len(times) == 2
    assert all(first[1] < second[0] for first, second in pairwise(times))


def test_the_service_is_ended_with_what_needed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control, told = tmp_path / "nvidia-cuda-mps-control", tmp_path / "told"
    control.write_text(_CONTROL)
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TOLD", str(told))
    with sharing() as places:
        assert Path(places["CUDA_MPS_PIPE_DIRECTORY"], "control").exists()
        assert Path(places["CUDA_MPS_LOG_DIRECTORY"]).is_dir()
    assert told.read_text().startswith("quit")
    assert not Path(f"/proc/{(tmp_path / 'told.pid').read_text().strip()}").exists()
    assert not Path(places["CUDA_MPS_PIPE_DIRECTORY"]).exists()


def test_without_the_service_ranks_share_by_taking_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with sharing() as places:
        assert places == {}


@pytest.mark.parametrize("framework", list(Framework))
def test_every_framework_is_started_on_shares(framework: Framework, tmp_path: Path) -> None:
    setting = Setting(framework, "1f1b", 8, 4, SHARED, tmp_path, shares=QUARTERS, turn=tmp_path / "turn")
    words = setting.command()
    assert words[1:7] == [str(START_RANKS), "--share", "25,25,25,25", "--turn", str(tmp_path / "turn"), "4"]
    assert "torch.distributed.run" not in words


def test_a_slow_device_has_half_a_share_and_a_slow_host_waits() -> None:
    device = Setting(Framework.TORCH, "1f1b", 8, 4, TINY, shares=QUARTERS, variant="slow_device")
    assert "25,25,12,25" in device.command()
    assert device.name == "torch_1f1b_m8_slow_device"
    host = Setting(Framework.TORCH, "1f1b", 8, 4, TINY, variant="slow_host").command()
    assert host.index(str(ROOT / "benchmarks" / "slow_host.py")) < host.index(
        str(ROOT / "perfscope" / "workloads" / "gpt_pipeline.py")
    )
    untied = Setting(Framework.MEGATRON, "1f1b", 8, 4, TINY, Path("scripts"), variant="untied")
    assert untied.command()[-1] == "--untie-embeddings-and-output-weights"
    with pytest.raises(ValueError, match="slow"):
        Setting(Framework.TORCH, "1f1b", 8, 4, TINY, variant="slow_device")


def test_only_the_slow_host_waits_before_its_stage(tmp_path: Path) -> None:
    script = tmp_path / "stage.py"
    script.write_text(_STAGE)
    words = [sys.executable, str(ROOT / "benchmarks" / "slow_host.py"), "1", "15", str(script)]
    printed = [
        subprocess.run(words, env={**os.environ, "RANK": str(rank)}, check=True, capture_output=True, text=True).stdout
        for rank in range(2)
    ]
    assert printed == ["", "rank 1 waits 0.015\n"]


def test_a_series_on_shared_gpus_shares_in_every_run(tmp_path: Path) -> None:
    series = Series(4, is_tiny=False, megatron=tmp_path, shares=QUARTERS, at_once=3)
    runs = {run.name: run for run in runs_of(series, tmp_path)}
    slow = runs.pop("torch_ddp_slow_device")
    assert "25,25,12,25" in slow.command
    assert all("25,25,25,25" in " ".join(run.command) for run in runs.values())
    assert {"torch_ddp", "torch_none", "postmortem_megatron_skip", "postmortem_deepspeed_skip"} <= set(runs)
    assert not any(runs[name].takes_turns for name in ("torch_none", "scaling"))
    assert all("--turn" in run.command for run in runs.values() if run.takes_turns)
    assert str(ROOT / "benchmarks" / "slow_host.py") in runs["torch_ddp_slow_host"].command
    launcher = runs["scaling"].command[runs["scaling"].command.index("--launcher") + 1]
    assert launcher.endswith("--share 25,25,25,25 {nproc}")
    assert runs["megatron_tp2_pp"].command[:2] == ("env", "CUDA_DEVICE_MAX_CONNECTIONS=1")
