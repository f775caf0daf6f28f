"""Records with odd numbers, cut lines and lines twice: the parts of a job still add up, or the reason is one line."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from perfscope.analyzers.goodput import account, find_lives
from perfscope.errors import PerfscopeError
from perfscope.sources.runs.run import read_run
from tests.conftest import ROOT

ODD = (0, -1, -(10**9), 10**18, None, "x", 1.5)


def damage(path: Path, source: random.Random) -> None:
    lines = path.read_text().splitlines()
    row = source.randrange(len(lines))
    record = json.loads(lines[row])
    numbers = [key for key, value in record.items() if isinstance(value, int)]
    kind = source.choice(["cut", "gone", "twice", "odd", "odd", "odd"])
    if kind == "cut":
        lines[row] = lines[row][: len(lines[row]) // 2]
    elif kind == "gone":
        del lines[row]
    elif kind == "twice":
        lines.insert(row, lines[row])
    elif numbers:
        record[source.choice(numbers)] = source.choice(ODD)
        lines[row] = json.dumps(record)
    path.write_text("".join(line + "\n" for line in lines))


@pytest.mark.parametrize("seed", range(12))
def test_the_parts_of_a_damaged_run_add_up_or_it_says_why(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    run = tmp_path / "RUN"
    shutil.copytree(ROOT / "fixtures" / "goodput" / "killed", run)
    files = [path for path in sorted(run.glob("ranks/*/*.json*")) if path.stat().st_size]
    for path in source.sample(files, 2):
        damage(path, source)
    try:
        answer = account(find_lives(read_run(run)))
    except PerfscopeError:
        return  # no step can be read
    assert sum(answer.spent_ns.values()) == answer.wall_ns
    assert min(answer.spent_ns.values()) >= 0
