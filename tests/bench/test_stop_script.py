"""A training script of which one rank stalls or leaves out a collective, at a forward pass of its model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.postmortem import MEGATRON, Case, megatron_cases, training_words
from benchmarks.processes import ROOT

_TRAINING = """
import os, time
from torch import distributed, nn, ones
time.sleep = lambda seconds: print("waits", seconds)
distributed.all_reduce = lambda *_, group=None, async_op=False: print("reduces", group or "")
distributed.get_world_size = lambda group=None: 1 if group == "alone" else 2
class GPTModel(nn.Linear): pass
model = GPTModel(2, 2)
for step in range(3):
    print("pass", step)
    model(ones(2))
    distributed.all_reduce(ones(2), group="alone")
    distributed.all_reduce(ones(2))
"""


def printed(rank: int, fault: str, script: Path) -> list[str]:
    words = [sys.executable, str(ROOT / "benchmarks" / "stop_script.py"), "1", fault, "2", str(script)]
    ended = subprocess.run(words, env={**os.environ, "RANK": str(rank)}, check=True, capture_output=True, text=True)
    return ended.stdout.splitlines()


@pytest.mark.parametrize("fault", ["host", "skip"])
def test_only_the_rank_at_fault_stops_and_only_at_that_pass(tmp_path: Path, fault: str) -> None:
    script = tmp_path / "training.py"
    script.write_text(_TRAINING)
    clean = [word for step in range(3) for word in (f"pass {step}", "reduces alone", "reduces ")]
    assert printed(0, fault, script) == clean
    faulty = printed(1, fault, script)
    if fault == "host":
        assert faulty == [*clean[:4], "waits 600", *clean[4:]]
    else:
        assert faulty == [*clean[:5], *clean[6:]]


def test_megatrons_own_script_is_stopped_at_a_pass_in_the_midst_of_the_training(tmp_path: Path) -> None:
    cases = list(megatron_cases(4, ["megatron:skip", "host"]))
    assert cases == [Case(MEGATRON, "skip", 4, 1), Case(MEGATRON, "host", 4, 2)]
    words = training_words(cases[0], cuda=True, scripts=tmp_path)
    assert words[0].endswith("stop_script.py")
    assert words[1:5] == ["1", "skip", "40", str(tmp_path / "pretrain_gpt.py")]
    assert "--pipeline-model-parallel-size" in words
