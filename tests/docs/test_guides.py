"""The examples of guides run and print what they say, and every key and scenario that guides name exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from perfscope.analyzers.whatif.scenarios import SCENARIOS
from perfscope.bench.settings import OPTION_SETS
from perfscope.cli import app
from perfscope.errors import ExitCode
from perfscope.workloads.strategies import STRATEGIES
from tests.commands.report_cli import run
from tests.conftest import ROOT, perfscope

DOCS = ROOT / "docs"
#: Guides with examples; those of the tutorial and of doctor have tests of their own.
GUIDES = [
    guide
    for guide in (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
    if guide.name not in ("tutorial.md", "doctor.md") and "```console" in guide.read_text()
]
FIXTURES = Path("fixtures")
#: Commands that print the keys that a guide names, and names in it that are values.
KEYS: dict[str, tuple[list[list[object]], str]] = {
    "tflops.md": ([["tflops", "--size", "52B", "--gbs", 1024, "--time", 127]], "time tflops json"),
    "planning.md": (
        [
            [
                "plan",
                "--model",
                "llama3-8b",
                "--gpus",
                8,
                "--tokens",
                "1B",
                "--tflops",
                430,
                "--gpu",
                "h100-sxm",
                "--gbs",
                64,
            ]
        ],
        "time tflops json peak_weights_bytes",
    ),
    "whatif.md": ([["whatif", FIXTURES / "whatif" / "base"]], ""),
    "compare.md": (
        [
            ["compare", FIXTURES / "light" / "gpu_bound", FIXTURES / "light" / "ddp_gpu_bound", "--anyway"],
        ],
        "slower faster same not_sure incomparable steps runs none comparisons",
    ),
}


def text_of(guide: str) -> str:
    return (DOCS / guide).read_text()


def shell_examples(guide: str) -> list[str]:
    return [line for block in re.findall(r"```sh\n(.*?)```", text_of(guide), re.DOTALL) for line in block.splitlines()]


COMMANDS = [
    *((guide, command) for guide in ("tflops.md", "planning.md") for command in shell_examples(guide)),
    *(("first block", line) for guide in ("whatif.md", "compare.md")
      for line in text_of(guide).partition("```sh\n")[2].partition("```")[0].splitlines()),
]  # fmt: skip


def plain(line: str) -> str:
    """A line without the blanks and dashes that only align a table."""
    return " ".join(re.sub(r":?-{3,}:?", "-", line).split())


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_examples_print_what_they_say(guide: Path, tmp_path: Path) -> None:
    """A line ``...`` stands for any lines, and at a line's end for its rest; each guide's examples share a folder."""
    for folder in ("fixtures", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    blocks = re.findall(r"```console\n(.*?)```", guide.read_text(), re.DOTALL)
    for part in [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]:
        command, *shown = part.splitlines()
        ended = perfscope(*shlex.split(command)[1:], cwd=tmp_path)
        assert ended.code in (ExitCode.OK, ExitCode.DIFFERENCE), ended.stderr
        printed = iter([plain(line) for line in ended.stdout.splitlines()])
        for line in map(plain, shown):
            start = line.removesuffix("...")
            assert not start or any(each == line or (line != start and each.startswith(start)) for each in printed), (
                line
            )


@pytest.mark.parametrize(("guide", "command"), COMMANDS)
def test_a_command_of_a_guide_runs(
    guide: str, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    answer = run(capsys, *shlex.split(command, comments=True)[1:])
    assert answer.code == 0, answer.err
    assert answer.out.startswith("# ")


def names_in(value: Any) -> set[str]:
    """Every key of a document, and the values of its keys ``name``."""
    if isinstance(value, list):
        return set().union(*map(names_in, value))
    return {*value, str(value.get("name"))}.union(*map(names_in, value.values())) if isinstance(value, dict) else set()


@pytest.mark.parametrize("guide", KEYS)
def test_every_key_that_a_guide_names_is_printed(
    guide: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    commands, values = KEYS[guide]
    section = text_of(guide).partition("## JSON")[2].partition("\n## ")[0]
    printed = set().union(*(names_in(run(capsys, *words, "--format", "json").data) for words in commands))
    named = set(re.findall(r"`([a-z_]+)`", section))
    assert named - set(values.split()) <= printed
    assert len(named) > 4


def test_the_guide_names_every_scenario() -> None:
    table = text_of("whatif.md").partition("## Scenarios")[2].partition("\n\nWithout ")[0]
    named = {name.partition("=")[0] for name in re.findall(r"`([a-z-]+(?:=[^`]*)?)`", table)}
    assert named == {scenario.name for scenario in SCENARIOS}


BENCH = text_of("bench.md")


def test_the_table_names_every_strategy() -> None:
    table = BENCH.partition("## Strategies")[2].partition("\n\nEach is one")[0]
    named = set(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))
    names = {name for cell in named for name in re.findall(r"`([a-z0-9-]+)`", cell)}
    assert names | {"zero-1", "zero-2"} == set(STRATEGIES)  # `zero-0` to `zero-3`


def test_every_option_that_it_names_exists() -> None:
    command = typer.main.get_command(app).get_command(typer.Context(typer.main.get_command(app)), "bench")  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert set(re.findall(r"--[a-z][a-z-]+", BENCH.replace("srun -N 2", ""))) <= known
    assert ",".join(OPTION_SETS) in BENCH
