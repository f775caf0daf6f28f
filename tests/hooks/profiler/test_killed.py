"""Whatever kills the compression of a run: the run has its answer, and the next try completes it."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

from perfscope.commands.profile.compression import compress
from perfscope.engine.analysis_report import to_report
from perfscope.engine.run import analyze
from perfscope.renderers import Format, render
from tests.conftest import ROOT
from tests.dying import kill_at_each_step, kill_at_size

SOURCE = ROOT / "fixtures" / "nodes" / "node1"


def new_run(tmp_path: Path) -> Path:
    """A run whose window has just ended; returns its trace."""
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    shutil.copytree(SOURCE, tmp_path / "run")
    (packed,) = (tmp_path / "run" / "traces").glob("*.gz")
    trace = packed.with_suffix("")
    trace.write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    return trace


def answer(run: Path) -> tuple[list[str], tuple[str, ...]]:
    """What is said of a run, whether its trace is compressed or not."""
    analysis = analyze([run])
    return [render(to_report(analysis), to).replace(".json.gz", ".json") for to in Format], analysis.notes


def test_a_run_gives_its_answer_after_each_kill_and_is_completed_by_the_next_try(tmp_path: Path) -> None:
    trace = new_run(tmp_path)
    text, expected = trace.read_bytes(), answer(tmp_path / "run")

    def work() -> None:
        compress(trace)

    def complete() -> None:
        assert answer(tmp_path / "run") == expected
        work()
        assert answer(tmp_path / "run") == expected
        (packed,) = trace.parent.iterdir()
        assert packed.name == f"{trace.name}.gz"
        assert gzip.decompress(packed.read_bytes()) == text
        new_run(tmp_path)

    kills = 0
    for _ in kill_at_each_step(work):
        complete()
        kills += 1
    assert kills > 2
    new_run(tmp_path)
    while kill_at_size(work, 3000 * kills):
        complete()
        kills += 1
    assert kills > 8
