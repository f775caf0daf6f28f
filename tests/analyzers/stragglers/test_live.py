"""Two ranks that train, and are late on purpose: the cause stands first, however busy the machine is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.analyzers.stragglers.lateness import LateCause
from perfscope.analyzers.stragglers.records import analyze
from perfscope.sources.runs.run import read_run
from tests.conftest import SCRIPTS, environment

pytestmark = pytest.mark.slow
CASES = {"straggler_garbage": LateCause.GARBAGE, "straggler_data": LateCause.DATA, "straggler_saves": LateCause.SAVE}


def test_the_cause_that_was_put_in_is_found(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "faults.py"), "--out", str(tmp_path), *CASES]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    for case, cause in CASES.items():
        lateness = analyze(read_run(tmp_path / case)).late
        assert (1, cause) in [(late.rank, late.cause) for late in lateness], case
        assert not [late for late in lateness if late.rank == 0 and late.cause is cause]
