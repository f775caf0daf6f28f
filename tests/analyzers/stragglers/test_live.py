"""Trainings of a few seconds, late or slow on purpose: the cause stands first, however busy the machine is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.injected_faults import find
from perfscope.analyzers.stragglers.lateness import LateCause
from perfscope.analyzers.stragglers.records import analyze
from perfscope.sources.runs.run import read_run
from tests.conftest import SCRIPTS, environment

pytestmark = pytest.mark.slow
CASES = {"straggler_garbage": LateCause.GARBAGE, "straggler_data": LateCause.DATA, "straggler_saves": LateCause.SAVE}
#: What is found first in trainings with one fault; machines that are busy make pauses of their own in the others.
FIRST = {"pause": "host_pauses", "straggler_garbage": "garbage_collection", "straggler_data": "slow_data_loading"}


def test_the_cause_that_was_put_in_is_found_and_stands_first(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "faults.py"), "--out", str(tmp_path), *CASES, "pause", "clean"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    for case, cause in CASES.items():
        lateness = analyze(read_run(tmp_path / case)).late
        assert (1, cause) in [(late.rank, late.cause) for late in lateness], case
        assert not [late for late in lateness if late.rank == 0 and late.cause is cause]
    found = {case: [finding.id for finding in find(tmp_path / case).findings] for case in (*FIRST, "clean")}
    assert {case: found[case][0] for case in FIRST} == FIRST, found
    assert not {"slow_data_loading", "garbage_collection", "blocking_saves"} & {*found["clean"]}
    assert "blocking_saves" in [finding.id for finding in find(tmp_path / "straggler_saves").findings]
