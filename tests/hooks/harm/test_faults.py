"""A fault in any function of the hooks ends the capture with one line, and changes nothing of the training."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import SCRIPTS, profile, run
from tests.hooks.harm.runs import LAUNCHERS, launcher

pytestmark = pytest.mark.slow

#: Functions that the capture of each launcher's training calls, at least.
FEWEST = {"python": 120, "torchrun": 120, "deepspeed": 120}


def losses(output: str) -> list[str]:
    return re.findall(r"step \d+ loss \S+", output)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_whatever_fails_in_the_hooks_the_training_ends_as_without_them(name: str, tmp_path: Path) -> None:
    command = [*launcher(name, ranks=1), SCRIPTS / "harmed.py", name, "none"]
    alone = run(command, tmp_path)
    captured = profile(
        *command, cwd=tmp_path, options=["--steps", "3-4", "--exec"], FAULTS=str(SCRIPTS / "break_hooks.py")
    )
    expected = losses(alone.stdout)
    assert len(expected) == 9
    broken = [line for line in captured.stderr.splitlines() if line.startswith("broken: ")]
    assert captured.code == alone.code == 0, captured.stderr
    assert losses(captured.stdout) == expected * (len(broken) + 1)
    assert len(set(broken)) >= FEWEST[name]
    assert "A PROFILER WAS LEFT RUNNING" not in captured.stderr
    assert "Traceback" not in captured.stderr
    said = [line for line in captured.stderr.splitlines() if line.startswith("perfscope: ")]
    assert len(said) <= len(broken)  # one line a fault; some only leave a figure out
