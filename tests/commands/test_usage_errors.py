"""What is typed wrong is answered in one line with what was meant; a missing path ends with 1 everywhere."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from perfscope.cli import COMMANDS
from tests.commands.report_cli import run
from tests.conftest import ROOT

MISTYPED = [
    ("profil", "there is no command 'profil': did you mean profile?"),
    ("tflops --szie 3", "no such option: --szie: did you mean --size"),
    ("analyze --fromat json x", "no such option: --fromat: did you mean --format"),
    ("analyze --json x", "no such option: --json: did you mean --format json?"),
    ("report bild", "no such command 'bild'. Did you mean 'build'?"),
]
WITH_HELP = [
    ("zzz", "there is no command 'zzz'"),
    ("tflops --zzz", "no such option: --zzz"),
    ("doctor x", "got unexpected extra argument(s) (x)"),
    ("tflops --format jsn", "invalid value for '--format' / '-f': 'jsn' is not one of 'md', 'json', 'csv'"),
]
MISSING = [
    "analyze nowhere",
    "export nowhere",
    "checkpoint nowhere",
    "logs nowhere",
    "plan --model nowhere/config.json --gpus 8",
    "report build nowhere",
    "scaling nowhere",
    "tflops --size 1B --log nowhere",
    "tflops --model nowhere/config.json",
]


@pytest.mark.parametrize(("typed", "line"), [*MISTYPED, *WITH_HELP])
def test_what_is_mistyped_is_answered_in_one_line_with_what_was_meant_or_the_help(
    capsys: pytest.CaptureFixture[str], typed: str, line: str
) -> None:
    answer = run(capsys, *typed.split())
    assert (answer.code, answer.out) == (2, "")
    problem, *hints = answer.err.splitlines()
    assert problem.startswith(f"perfscope: {line}")
    assert len(hints) == ((typed, line) in WITH_HELP)


@pytest.mark.parametrize("typed", MISSING)
def test_a_path_that_does_not_exist_ends_with_1_in_every_command(
    capsys: pytest.CaptureFixture[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.chdir(str(tmp_path))
    answer = run(capsys, *typed.split())
    assert (answer.code, answer.out) == (1, ""), answer.err
    assert answer.err.startswith("perfscope: nowhere")


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys)
    assert answer.code == 2
    assert "Usage" in answer.out
    assert answer.err == ""


@pytest.mark.parametrize("typed", [*COMMANDS, "report table", "report refresh", "report build"])
def test_a_command_without_its_arguments_says_how_it_is_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    if typed == "doctor":
        return  # it needs none
    monkeypatch.chdir(tmp_path)
    answer = run(capsys, *typed.split())
    assert (answer.code, answer.out) == (2, "")
    problem, usage, example = answer.err.splitlines()
    assert problem.startswith("perfscope: ")
    assert usage.startswith(f"  usage: perfscope {typed} ")
    assert re.match(r"  hint: (perfscope|--)", example)


@pytest.fixture
def two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder runs/ with an older and a newer run."""
    for age, name in ((20, "zz"), (10, "aa")):
        shutil.copytree(ROOT / "fixtures" / "runs" / "cpu_trainer", tmp_path / "runs" / name)
        os.utime(tmp_path / "runs" / name / "run.json", (10**9 - age, 10**9 - age))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("two_runs")
@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("analyze --only steps", "the newest run of runs/: runs/aa"),
        ("export", "the newest run of runs/: runs/aa"),
        ("compare", "the newest 2 runs of runs/: runs/zz and runs/aa"),
    ],
)
def test_the_newest_runs_are_taken_where_none_is_named(
    capsys: pytest.CaptureFixture[str], typed: str, named: str
) -> None:
    answer = run(capsys, *typed.split())
    assert answer.code == 0, answer.err
    assert named in answer.err


@pytest.mark.usefixtures("two_runs")
@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("analyze nowhere", "the newest run is runs/aa"),
        ("watch nowhere", "the newest run is runs/aa"),
        ("analyze train.py", "perfscope profile -- python train.py"),
        ("analyze runs/zz/page.html", "perfscope analyze runs/zz"),
    ],
)
def test_what_is_no_run_is_answered_with_what_was_probably_meant(
    capsys: pytest.CaptureFixture[str], typed: str, hint: str
) -> None:
    for file in ("train.py", "runs/zz/page.html"):
        Path(file).write_text("<!doctype html>")
    answer = run(capsys, *typed.split())
    assert answer.code == 1
    assert answer.err.splitlines()[-1] == f"  hint: {hint}"
