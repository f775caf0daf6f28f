"""A script that waits for its children, or is told of their end, meets none of a profiler window."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conftest import SCRIPTS, profile


def test_a_window_leaves_no_child_to_the_script(tmp_path: Path) -> None:
    ended = profile(sys.executable, SCRIPTS / "reaping.py", cwd=tmp_path, options=("--no-watchdog", "--no-page"))
    assert ended.code == 0, ended.stderr
    assert ended.stdout.splitlines()[:4] == ["SIGCHLD 0", "own children 3", "wakeups 3", "other children 0"]
    assert len(list((tmp_path / "RUN" / "traces").glob("*.pt.trace.json.gz"))) == 1
