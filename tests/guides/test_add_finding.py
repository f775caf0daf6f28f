"""CONTRIBUTING's guide "Add a finding": a function and a line make every report look for one more cause."""

from __future__ import annotations

import json

from tests.guides.tree import Tree

TOY = '''\
def find_long_steps(training: TracedRun) -> Fault | None:
    """Steps that take time."""
    steps = training.results.steps
    if steps is None or steps.step_time_s is None:
        return None
    cost_us = steps.step_time_s * US_PER_S
    evidence = fact("Steps take time.", "/steps", "step_time_s")
    return Fault(cost_us, (0.0, cost_us), (), (evidence,), "Try nothing.")
'''
RUN = "fixtures/findings/h200/clean"


def test_a_function_and_a_line_add_a_finding(tree: Tree) -> None:
    tree.add_line("analyzers/findings/host.py", TOY, before="def find_slow_launches(")
    rule = 'Finder("toy", "Toy", (StepPart.OUTSIDE,), find_long_steps),'
    tree.add_line("analyzers/findings/host.py", rule, before='Finder("slow_data_loading"')

    printed = tree.perfscope("analyze", "--only", "findings", RUN)
    assert printed.code == 0, printed.stderr
    assert "**Toy** (`toy`)" in printed.stdout

    document = json.loads(tree.perfscope("analyze", "--format", "json", RUN).stdout)
    first = document["results"]["findings"][0]
    assert first["id"] == "toy"
    assert first["cost_us"] == document["results"]["steps"]["step_time_s"] * 1e6
