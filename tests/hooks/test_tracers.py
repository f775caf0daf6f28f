"""Hooks look at no tensor while torch traces, and a script's own classes are pickled by value as without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import SCRIPTS, environment, step_lines


def test_models_are_traced_and_classes_pickled_between_steps(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "traced_and_pickled.py")]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["nodes", "1", "Optimizer"]
    assert "Tracer" not in ended.stderr
    assert "training goes on" not in ended.stderr
    steps = step_lines(tmp_path / "RUN", "00000")
    assert [step["step"] for step in steps] == list(range(1, 10))
    assert [step.get("micro_batches") for step in steps[1:8]] == [1] * 7
    assert [step.get("samples") for step in steps[1:8]] == [4] * 7
