"""CONTRIBUTING's guide "Add an analyzer": one new file and one line make ``perfscope analyze`` run it."""

from __future__ import annotations

import json

from tests.guides.tree import Tree

TOY = '''\
"""How many kernels each trace holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.report import Column, Json, Section
from perfscope.tables.trace import Trace


@dataclass(frozen=True, slots=True)
class KernelCount:
    """How many kernels all traces hold."""

    kernels: int

    def data(self) -> Json:
        """``results.toy``."""
        return {"kernels": self.kernels}

    def sections(self) -> tuple[Section, ...]:
        """A table of one row."""
        return (Section("Toy", (Column("Kernels"),), ((self.kernels,),)),)


def measure(trace: Trace) -> int:
    """The kernels of one trace."""
    return len(trace.device)


def analyze(partials: Sequence[int]) -> KernelCount:
    """The kernels of all traces."""
    return KernelCount(sum(partials))
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
