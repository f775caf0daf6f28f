"""Every command in the guides runs, and what the guides say of it is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.analyzers.flops.making import answer, ask
from tests.conftest import ROOT

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
    no_keys = {"bigscience", "time", "tflops", "json"}
    of_histories = {"peak_weights_bytes"}  # the run of the example has none of the allocator
    keys = set(re.findall(r"`([a-z_]+)`", section)) - no_keys - of_histories
    document = (
        answer("tflops", "--size", "52B", "--gbs", 1024, "--time", 127)
        if guide.name == "tflops.md"
        else answer("plan", "--run", ROOT / "fixtures" / "runs" / "h200_zero1", "--zero", 1, "--tflops", 430)
    )
    assert keys <= names_in(document)


def names_in(value: object) -> set[str]:
    """Every key of a document, and the values of its keys ``name``."""
    if isinstance(value, list):
        return set().union(*(names_in(each) for each in value))
    if not isinstance(value, dict):
        return set()
    return {*value, str(value.get("name"))}.union(*(names_in(each) for each in value.values()))


def test_the_comparison_with_a_run_is_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = GUIDES[1].read_text().partition("## Comparison with a run")[2].partition("\n## ")[0]
    (command,) = re.findall(r"```sh\nperfscope (.*)\n```", text)
    printed = [re.split(r" *\| *", line) for line in ask(*shlex.split(command)).stdout.splitlines()]
    rows = [re.split(r" *\| *", line)[1:5] for line in text.splitlines() if re.match(r"\| [A-Z]", line)]
    assert len(rows) == 4  # the heading, too
    for row in rows:
        assert row in [line[1:5] for line in printed]
