"""CONTRIBUTING's guide "Add a finding": one new file and one line make every report look for one more cause."""

from __future__ import annotations

import json

from tests.guides.tree import Tree

TOY = '''\
"""Findings about steps that are longer than a microsecond."""

from __future__ import annotations

from perfscope.analyzers.findings.facts import Evidence
from perfscope.analyzers.findings.finding import Account, Cause, Rule, Rules
from perfscope.analyzers.findings.training import Training


def find_long_steps(training: Training) -> Cause | None:
    """Steps that take time."""
    seconds = training.facts.number("/steps/step_time_s")
    if seconds is None:
        return None
    evidence = Evidence("Steps take time.", ("/steps/step_time_s",))
    return Cause(seconds * 1e6, (0.0, seconds * 1e6), (), (evidence,), "Try nothing.")


RULES: Rules = (Rule("toy", "Toy", (Account.BESIDE,), find_long_steps),)
'''
RUN = "fixtures/findings/h200/clean"


def test_a_new_file_and_one_line_add_a_finding(tree: Tree) -> None:
    tree.add_file("analyzers/findings/toy.py", TOY)
    tree.add_line("analyzers/findings/registry.py", '"toy",', before='"batches"')

    printed = tree.perfscope("analyze", "--only", "findings", RUN)
    assert printed.code == 0, printed.stderr
    assert "**Toy** (`toy`)" in printed.stdout

    document = json.loads(tree.perfscope("analyze", "--format", "json", RUN).stdout)
    first = document["results"]["findings"][0]
    assert first["id"] == "toy"
    assert first["cost_us"] == document["results"]["steps"]["step_time_s"] * 1e6
