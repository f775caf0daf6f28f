"""Loops without an engine: RPC, several devices in one process, and compiled optimizer steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import SCRIPTS, profile, step_lines
from tests.hooks.frameworks.running import field, notes, torchrun

pytestmark = pytest.mark.slow


def test_a_step_of_a_distributed_optimizer_is_the_trainer_s(tmp_path: Path) -> None:
    run = torchrun(2, "rpc_parameter_server.py", "Adagrad", cwd=tmp_path)
    assert field(run, 1, "source") == {"rpc_optimizer"}
    assert [line["step"] for line in step_lines(run, "00001")] == list(range(1, 7))
    assert (run / "ranks" / "00000" / "steps.jsonl").read_text() == "", "the server makes no steps of its own"
    assert json.loads((run / "ranks" / "00000" / "rank.json").read_text())["world_size"] == 2


@pytest.mark.parametrize(("how", "samples"), [("replicas", 8), ("stages", None)])
def test_several_devices_in_one_process_make_one_step(how: str, samples: int | None, tmp_path: Path) -> None:
    ended = profile(sys.executable, SCRIPTS / "loops.py", how, cwd=tmp_path, options=["--exec", "--steps", "2-3"])
    assert ended.code == 0, ended.stderr
    lines = step_lines(tmp_path / "RUN")
    assert [line["step"] for line in lines] == list(range(1, 7))
    # Clearing the gradients shows where the first step begins, so that a window at step 2 has its warm-up.
    assert [line.get("window") for line in lines[:4]] == ["warmup", "profiled", "profiled", "export"]
    assert "without a warm-up" not in " ".join(notes(tmp_path / "RUN"))
    if samples:
        assert {line["samples"] for line in lines} == {samples}


@pytest.mark.parametrize("what", ["model", "step", "function"])
def test_compiled_steps_are_counted(what: str, tmp_path: Path) -> None:
    ended = profile(sys.executable, SCRIPTS / "loops.py", f"compiled_{what}", cwd=tmp_path, options=["--exec"])
    assert ended.code == 0, ended.stderr
    assert [line["step"] for line in step_lines(tmp_path / "RUN")] == list(range(1, 9))
