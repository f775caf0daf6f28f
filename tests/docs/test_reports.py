"""The examples of docs/checkpoints.md and docs/reports.md print what the documents show."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.commands.report_cli import run
from tests.conftest import ROOT

EXAMPLES = [
    (name, command, shown)
    for name in ("checkpoints.md", "reports.md")
    for block in re.findall(r"```console\n(.*?)```", (ROOT / "docs" / name).read_text(), re.DOTALL)
    for command, shown in re.findall(r"\$ (.*)\n((?:(?!\$ ).*\n)*)", block)
]


def plain(line: str) -> str:
    """A line without the blanks and dashes that only align a table."""
    return " ".join(re.sub(r":?-{3,}:?", "-", line).split())


@pytest.mark.parametrize(("name", "command", "shown"), EXAMPLES)
def test_an_example_prints_what_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, command: str, shown: str
) -> None:
    monkeypatch.chdir(ROOT)
    answer = run(capsys, *shlex.split(command)[1:])
    printed = iter([plain(line) for line in answer.out.splitlines()])
    for line in shown.splitlines():
        if line.strip() not in ("", "..."):
            assert plain(line) in printed, line  # in this order


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 4
