"""A training that is killed and resumes: its goodput is what the script itself measured, to within one step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.constants import NS_PER_S
from tests.conftest import SCRIPTS, environment

pytestmark = pytest.mark.slow
STEP_S = 0.6


def test_kill_and_resume_give_the_times_of_the_script(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPTS / "resumed.py"), "RUN", "model.pt", "truth.jsonl", "--step-s", str(STEP_S)]
    for extra in (["--steps", "7", "--kill-after", "5"], ["--steps", "7"]):
        ended = subprocess.run([*words, *extra], cwd=tmp_path, env=environment(), capture_output=True, check=False)
        assert ended.returncode == (-9 if "--kill-after" in extra else 0), ended.stderr
    first, second = (json.loads(line) for line in (tmp_path / "truth.jsonl").read_text().splitlines())
    command = [sys.executable, "-m", "perfscope", "analyze", "RUN", "--only", "goodput", "-f", "json"]
    answered = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    answer = json.loads(answered.stdout)["results"]["goodput"]
    spent_s = {place: place_ns / NS_PER_S for place, place_ns in answer["spent_ns"].items()}
    step_s = (STEP_S + 0.2) * 1.1
    assert second["first"] == 4
    useful_s = (sum(first["steps_ns"][:3]) + sum(second["steps_ns"])) / NS_PER_S
    redone_s = sum(first["steps_ns"][3:]) / NS_PER_S
    saves_s = sum(first["saves_ns"] + second["saves_ns"]) / NS_PER_S
    assert spent_s["redone_steps"] == pytest.approx(redone_s, abs=step_s)
    assert spent_s["useful_steps"] == pytest.approx(useful_s, abs=step_s)
    assert spent_s["saves"] == pytest.approx(saves_s, abs=0.2)
    down_s = (second["ends_ns"][0] - first["ends_ns"][-1] - second["steps_ns"][0]) / NS_PER_S
    assert spent_s["down"] + spent_s["restarts"] == pytest.approx(down_s, abs=step_s)
    assert sum(answer["spent_ns"].values()) == answer["wall_ns"]
    assert [start["resumed_after_step"] for start in answer["starts"]] == [None, 3]
    assert answer["starts"][0]["redone_steps"] == 2
    assert answer["lost_gpu_hours"] > 0
