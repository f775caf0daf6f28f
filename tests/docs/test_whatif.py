"""Every command in the guide on what-if runs, and every key and scenario that it names exists."""

from __future__ import annotations

import re
import shlex

import pytest

from perfscope.analyzers.replay.scenarios import SCENARIOS
from tests.commands.report_cli import run
from tests.conftest import ROOT

GUIDE = (ROOT / "docs" / "whatif.md").read_text()
COMMANDS = [line.removeprefix("perfscope ") for line in GUIDE.partition("```sh\n")[2].partition("```")[0].splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_runs(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    answer = run(capsys, *shlex.split(command))
    assert answer.code == 0, answer.err
    assert answer.out.startswith("# ")


def test_the_guide_names_every_scenario() -> None:
    table = GUIDE.partition("## Scenarios")[2].partition("\n\nWithout ")[0]
    named = {name.partition("=")[0] for name in re.findall(r"`([a-z-]+(?:=[^`]*)?)`", table)}
    assert named == {scenario.name for scenario in SCENARIOS}


def test_every_key_that_the_guide_names_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    section = GUIDE.partition("## JSON")[2]
    keys = set(re.findall(r"`([a-z_]+)`", section))
    document = run(capsys, "whatif", ROOT / "fixtures" / "whatif" / "base", "--format", "json").data
    printed = {*document, *document["scenarios"][0], *document["critical_path"][0], *document["contention"][0]}
    assert keys <= printed
