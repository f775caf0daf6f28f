"""Claims about docs/bubble.md: each of its examples prints what the page says."""

from __future__ import annotations

import shlex

import pytest
from typer.testing import CliRunner

from perfscope.cli import app
from tests.conftest import ROOT

_PAGE = ROOT / "docs" / "bubble.md"


def _examples() -> list[tuple[str, str]]:
    blocks = _PAGE.read_text("utf-8").split("````text\n")[1:]
    parts = [block.split("\n````\n")[0].partition("\n") for block in blocks]
    return [(command, output) for command, _, output in parts]


def test_the_page_has_examples() -> None:
    assert len(_examples()) >= 2


@pytest.mark.parametrize(("command", "output"), _examples())
def test_an_example_of_the_page_prints_what_the_page_says(
    command: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(_PAGE.parents[1])
    name, *arguments = shlex.split(command.removeprefix("$ "))
    assert name == "perfscope"
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert result.stdout.strip() == output.strip()
