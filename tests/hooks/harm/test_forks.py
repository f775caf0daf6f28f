"""A process that training forks ends as without perfscope, in a window as behind it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import SCRIPTS, profile, run, step_lines

pytestmark = pytest.mark.slow


def test_forked_processes_end_as_without_perfscope(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, SCRIPTS / "forking.py"]
    alone = run(command, tmp_path)
    assert alone.stdout.count("exit 3") == 3
    for run_dir, options in (("plain", []), ("every_option", ["--stack", "--modules"])):
        captured = profile(*command, cwd=tmp_path, run_dir=run_dir, options=["--exec", *options])
        # The children of one step write in any order.
        assert sorted(captured.stdout.splitlines()) == sorted(alone.stdout.splitlines())
        assert (captured.code, captured.stderr) == (alone.code, alone.stderr)
        assert len(step_lines(tmp_path / run_dir)) == 12
        assert len(list((tmp_path / run_dir / "ranks").iterdir())) == 1  # a child that trains records nothing
        assert (
            len({path.name.partition(".pt")[0] for path in (tmp_path / run_dir / "traces").glob("*.pt.trace.json*")})
            == 1
        )
