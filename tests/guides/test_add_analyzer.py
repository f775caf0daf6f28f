"""CONTRIBUTING's guide "Add an analyzer": one new file and one line make ``perfscope analyze`` run it."""

from __future__ import annotations

import json
import sys

from tests.conftest import run
from tests.guides.tree import Tree

TOY = '''\
"""How many kernels each trace holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from perfscope.result import Column, Doc, Figures, Result, Table
from perfscope.tables.trace import Trace


class DeviceKernels(Figures, frozen=True):
    """The kernels of one trace."""

    kernels: Annotated[int, Doc("How many the trace holds.")]


class KernelCount(Result, frozen=True):
    """``results.toy``: how many kernels the traces hold."""

    traces: Annotated[tuple[DeviceKernels, ...], Doc("Each trace.")]
    kernels: Annotated[int, Doc("Kernels of all of them.")]

    TABLES = (Table("Toy", "traces", (Column("Kernels", "kernels"),)),)


def measure(trace: Trace) -> int:
    """The kernels of one trace."""
    return len(trace.device)


def analyze(partials: Sequence[int]) -> KernelCount:
    """The kernels of all traces."""
    return KernelCount(tuple(map(DeviceKernels, partials)), sum(partials))
'''
LINE = 'Analyzer("toy", "perfscope.analyzers.toy", Reads.TRACES),'
TRACE = "fixtures/traces/single/rank0.pt.trace.json.gz"


def test_a_new_file_and_one_line_add_an_analyzer(tree: Tree) -> None:
    tree.add_file("analyzers/toy.py", TOY)
    tree.add_line("perfscope/engine/registry.py", LINE, before='Analyzer("breakdown"')

    printed = tree.perfscope("analyze", "--only", "toy", TRACE)
    assert printed.code == 0, printed.stderr
    assert "## Toy" in printed.stdout

    results = json.loads(tree.perfscope("analyze", "--format", "json", TRACE).stdout)["results"]
    assert results["toy"]["kernels"] == results["breakdown"]["ranks"][0]["device_events"] > 0

    program = (
        f"import perfscope; run = perfscope.open({TRACE!r}); print(run.results.toy.kernels, len(run.frame('toy')))"
    )
    ended = run([sys.executable, "-c", program], tree.root, PYTHONPATH=str(tree.root))
    assert ended.stdout.split() == [str(results["toy"]["kernels"]), "1"], ended.stderr
