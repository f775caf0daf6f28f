"""CONTRIBUTING's guide "Add a figure to a result": a field and a column of one file give it everywhere."""

from __future__ import annotations

import json
import sys

from tests.conftest import run
from tests.guides.tree import Tree

FIELD = 'idle_share = InUnit("idle", 1, "Idle time of the gaps over their device time.", per="duration")'
COLUMN = 'Column("Idle share", "idle_share", None, 3),'
TRACE = "fixtures/findings/h200/clean"


def test_a_field_and_a_column_add_a_figure(tree: Tree) -> None:
    tree.add_line("analyzers/optimizer.py", FIELD, before="device_us = InUnit(")
    tree.add_line("analyzers/optimizer.py", COLUMN, before='Column("Gaps (ms)"')

    assert "| Idle share |" in " ".join(tree.perfscope("analyze", "--only", "optimizer", TRACE).stdout.split())
    printed = tree.perfscope("analyze", "--only", "optimizer", "--format", "json", TRACE)
    share = json.loads(printed.stdout)["results"]["optimizer"]["ranks"][0]["idle_share"]
    program = f"import perfscope; print(perfscope.open({TRACE!r}).frame('optimizer')['idle_share'][0])"
    ended = run([sys.executable, "-c", program], tree.root, PYTHONPATH=str(tree.root))
    assert float(ended.stdout) == share, ended.stderr
