"""The examples of guides run and print what they say, and every key and scenario that guides name exists."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
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
from tests.conftest import ROOT, environment, perfscope

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


GUIDE = (ROOT / "docs" / "compare.md").read_text()
TRAIN = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(64, 256)).square().mean().backward()
    optimizer.step()
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.slow
def test_the_workflow_compares_and_comments(tmp_path: Path) -> None:
    """Each ``run`` of the workflow, as GitHub's runner executes it."""
    (tmp_path / "train.py").write_text(TRAIN)
    assert perfscope("profile", "-o", "first", "--", sys.executable, "train.py", cwd=tmp_path).code == 0
    (tmp_path / "baselines").mkdir()
    assert perfscope("compare", "first", "--save", "baselines/train.json", cwd=tmp_path).code == 0
    program(tmp_path / "bin" / "perfscope", f'#!/bin/sh\nexec {sys.executable} -m perfscope "$@"\n')
    program(tmp_path / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    variables = {
        **environment(),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    variables["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{variables['PATH']}"
    scripts = re.findall(r"^        run: (\|\n(?: {10}.*\n)+|.*\n)", GUIDE, re.MULTILINE)
    assert len(scripts) == 3
    codes = []
    for script in scripts:
        lines = script.removeprefix("|\n").splitlines()
        text = "\n".join(line.removeprefix(" " * 10) for line in lines)
        codes.append(subprocess.run(["bash", "-e", "-c", text], cwd=tmp_path, env=variables, check=False).returncode)
    assert codes[0] == 0
    assert codes[1] in (0, 3)  # a machine that others use may well be slower now
    assert codes[2] == 0
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("# runs against baselines/train.json: ")
    assert "the run is the unit" in summary


README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(console|diff)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d[\d,.]*")
#: A time has the unit that fits it.
TIME = re.compile(r"(-?\d[\d,.]*) (?:ms|s|us)\b")


@pytest.mark.slow
def test_each_command_says_what_the_tutorial_shows(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs" / "tutorial" / "train.py", tmp_path)
    commands = 0
    for kind, text in BLOCK.findall(TUTORIAL.read_text()):
        if kind == "diff":
            mend(tmp_path / "train.py", text)
            continue
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            program, *words = shlex.split(command)
            assert program == "perfscope"
            ended = perfscope(*words, cwd=tmp_path)
            assert ended.code == 0, ended.stderr
            printed = ended.stdout + ended.stderr
            for line in shown:
                assert line == "..." or re.search(f"^{pattern(line)}$", printed, re.MULTILINE), (line, printed)
            commands += 1
    assert commands == 3


@pytest.mark.slow
def test_the_readme_shows_the_finding_of_its_first_command(tmp_path: Path) -> None:
    (command,) = re.findall(r"^perfscope (profile .*tutorial.*)$", README.read_text(), re.MULTILINE)
    (finding,) = re.findall(r"^1\. (.*)$", README.read_text(), re.MULTILINE)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    ended = perfscope(*shlex.split(command), cwd=tmp_path)
    assert re.search(f"^perfscope: finding 1: {pattern(finding)}\\.", ended.stderr, re.MULTILINE), ended.stderr


def mend(script: Path, diff: str) -> None:
    """Apply a diff of one change."""
    before, after = ("\n".join(line[1:] for line in diff.splitlines() if line[0] == sign) for sign in "-+")
    text = script.read_text()
    assert text.count(before) == 1
    script.write_text(text.replace(before, after))


def pattern(line: str) -> str:
    """A line whose figures may be others; columns are as wide as their figures."""
    masked = NUMBER.sub("\0", TIME.sub("\1", line))
    escaped = re.escape(re.sub(r"\s+", " ", masked)).replace(r"\ ", r"\s+")
    return escaped.replace("\1", r"\S+ (?:ms|s|us)").replace("\0", r"[-+]?[\d,.]+")
