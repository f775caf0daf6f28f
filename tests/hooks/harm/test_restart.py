"""A rank that torchrun starts again keeps what its first process wrote, and is counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.sources.runs.run import read_run
from tests.conftest import SCRIPTS, analysis, profile

pytestmark = pytest.mark.slow


def test_an_elastic_restart_has_records_of_both_lives(tmp_path: Path) -> None:
    launcher = ["torchrun", "--standalone", "--nproc_per_node", "1", "--max-restarts", "1"]
    ended = profile(*launcher, SCRIPTS / "restarted.py", cwd=tmp_path, options=["--steps", "3", "--exec"])
    assert (ended.code, ended.stdout) == (0, "done\n"), ended.stderr
    tables = {(table.rank, table.attempt): len(table) for table in read_run(tmp_path / "RUN").steps}
    assert tables == {(0, 0): 5, (0, 1): 8}
    assert len({trace.name for trace in (tmp_path / "RUN" / "traces").glob("*.pt.trace.json*")}) == 2
    steps = analysis(tmp_path / "RUN")["results"]["steps"]
    assert (steps["count"], len(steps["ranks"])) == (8, 1)
    assert any("started more than once" in note for note in steps["notes"])
