"""Every command in the guides runs, and what the guides say of it is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.flops.making import answer, ask

GUIDES = (ROOT / "docs" / "tflops.md", ROOT / "docs" / "planning.md")
COMMANDS = [
    (guide.name, line.removeprefix("perfscope "))
    for guide in GUIDES
    for block in re.findall(r"```sh\n(.*?)```", guide.read_text(), re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize(("guide", "command"), COMMANDS)
def test_a_command_of_a_guide_runs(guide: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    ended = ask(*shlex.split(command))
    assert ended.code == 0, ended.stderr
    assert ended.stdout.startswith("# ")


def test_the_guides_have_examples() -> None:
    assert {guide for guide, _ in COMMANDS} == {guide.name for guide in GUIDES}


@pytest.mark.parametrize("guide", GUIDES)
def test_every_key_that_a_guide_names_is_printed(guide: Path) -> None:
    section = guide.read_text().partition("## JSON")[2].partition("\n## ")[0]
    keys = set(re.findall(r"`([a-z_]+)`", section)) - {"bigscience", "time", "tflops", "json"}
    document = (
        answer("tflops", "--size", "52B", "--gbs", 1024, "--time", 127)
        if guide.name == "tflops.md"
        else answer("plan", "--model", "13B", "--tokens", "260B", "--gpus", 16, "--gpu", "a100-40", "--tflops", 45)
    )
    printed = set(document)
    for value in document.values():
        rows = value if isinstance(value, list) else [value]
        printed |= {key for row in rows if isinstance(row, dict) for key in row}
    assert keys <= printed
