"""Faults in the hooks, forks and restarted ranks: the training goes on as without perfscope."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from perfscope.sources.runs.run import read_run
from tests.conftest import SCRIPTS, analysis, profile, run, step_lines
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
