"""CONTRIBUTING's guide "Add a renderer": one new file and one line make every command's ``--format`` take it."""

from __future__ import annotations

from tests.guides.tree import Tree

TOY = '''\
"""A report as the titles of its sections, one a line."""

from __future__ import annotations

from perfscope.report import Report


def render(report: Report) -> str:
    """The titles of a report and its sections."""
    return "\\n".join([report.title, *(f"* {section.title}" for section in report.sections)])
'''
LINE = 'TOY = "toy"'
TRACE = "fixtures/traces/single/rank0.pt.trace.json.gz"


def test_a_new_file_and_one_line_add_a_format(tree: Tree) -> None:
    tree.add_file("perfscope/renderers/toy.py", TOY)
    tree.add_line("perfscope/renderers/__init__.py", LINE, before='CSV = "csv"')

    printed = tree.perfscope("analyze", "--only", "breakdown", "--format", "toy", TRACE)
    assert (printed.code, printed.stderr) == (0, "")
    assert printed.stdout.splitlines() == ["Where the time went", "* Device time", "* Device time by step"]
