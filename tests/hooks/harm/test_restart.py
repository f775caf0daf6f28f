"""A rank that torchrun starts again keeps what its first process wrote, and is counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.sources.runs.run import read_run
from tests.conftest import SCRIPTS, analysis, profile, run

pytestmark = pytest.mark.slow


def test_an_elastic_restart_has_records_of_both_lives(tmp_path: Path) -> None:
    launcher = ["torchrun", "--standalone", "--nproc_per_node", "1", "--max-restarts", "1"]
    words = SCRIPTS / "raising_at_first.py", "6", "all", "ddp"
    ended = profile(*launcher, *words, cwd=tmp_path, options=["--steps", "3", "--exec"])
    assert (ended.code, ended.stdout) == (0, "done\n"), ended.stderr
    tables = {(table.rank, table.attempt): len(table) for table in read_run(tmp_path / "RUN").steps}
    assert tables == {(0, 0): 5, (0, 1): 12}
    assert len({trace.name for trace in (tmp_path / "RUN" / "traces").glob("*.pt.trace.json*")}) == 2
    steps = analysis(tmp_path / "RUN")["results"]["steps"]
    assert (steps["count"], len(steps["ranks"])) == (12, 1)
    assert any("started more than once" in note for note in steps["notes"])


@pytest.mark.parametrize(("step", "rank"), [(2, "all"), (5, "1")])
def test_a_first_attempt_that_raises_around_a_window_is_followed_by_the_second(
    step: int, rank: str, tmp_path: Path
) -> None:
    launcher = ["torchrun", "--standalone", "--nproc_per_node", "2", "--max-restarts", "2", "--monitor-interval", "0.1"]
    command: list[str | Path] = [*launcher, SCRIPTS / "raising_at_first.py", str(step), rank]
    alone = run(command, tmp_path)
    ended = profile(*command, cwd=tmp_path, options=["--steps", "4-6", "--exec"])
    assert (alone.code, alone.stdout) == (0, "done\n" * 2), alone.stderr
    assert (ended.code, ended.stdout) == (0, "done\n" * 2), ended.stderr
