"""A training ends with perfscope as without: exit code, output, every loss to the last bit; and what it wrote stays.

The rows are the ways to end, on three launchers; ``test_faults`` has the row of failing hooks.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.sources.runs.run import read_run
from tests.hooks.harm.runs import AFTER, CASES, DISKS, INSIDE, Case, Runs, own_output

pytestmark = pytest.mark.slow

PAIRS = [case for case in CASES if case.captured]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    made = Runs(tmp_path_factory.mktemp("harm"))
    yield made
    made.close()


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: f"{case.launcher}-{case.how}-{case.when}")
def test_it_ends_as_without_perfscope_and_what_was_written_can_be_read(runs: Runs, case: Case) -> None:
    alone, captured = runs.pair(case)
    last = {"none": 9, "readonly": 9, "full": 60}.get(case.how, case.when)
    assert len([line for line in own_output(alone) if line.startswith("step ")]) == last, alone.stderr
    assert own_output(captured) == own_output(alone), captured.stderr
    assert captured.code == alone.code, captured.stderr
    check_what_was_written(runs.folder(case) / "disk" / "RUN", case, captured.stderr)


def check_what_was_written(run_dir: Path, case: Case, stderr: str) -> None:
    """Every whole step and every finished window."""
    ranks = 2 if case.launcher == "torchrun" else 1
    tables = read_run(run_dir).steps
    assert {table.rank for table in tables} == set(range(ranks if case.how != "readonly" else 0))
    for table in tables:
        steps = table.step.tolist()
        assert steps == list(range(1, len(steps) + 1))
        if case.how == "full":
            assert AFTER - 1 <= len(steps) < 60  # the second rank may still write while the first fills the disk
        else:
            assert len(steps) == (9 if case.how == "none" else case.when)
    killed_in_it = case.when == INSIDE and case.how not in ("raise", "exit", "SIGINT")
    assert len(whole_traces(run_dir / "traces")) == (0 if killed_in_it or case.how == "readonly" else ranks)
    if case.how in DISKS:
        assert 1 <= stderr.count("training goes on") <= ranks


def whole_traces(folder: Path) -> set[str]:
    """The names of the traces, each of which is whole, compressed or not."""
    names = set()
    for path in folder.glob("*.pt.trace.json*"):  # what is measured of them may stand beside them
        if path.name.startswith(".tmp-") or path.name.endswith(".tmp"):
            continue
        content = path.read_bytes()
        assert json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)["traceEvents"]
        names.add(path.name.removesuffix(".gz"))
    return names
