"""What is typed wrong is answered in one line with what was meant; a missing path ends with 1 everywhere."""

from __future__ import annotations

import pytest

from tests.commands.report_cli import run

MISTYPED = [
    ("profil", "there is no command 'profil': did you mean profile?"),
    ("tflops --szie 3", "no such option: --szie: did you mean --size"),
    ("analyze --fromat json x", "no such option: --fromat: did you mean --format"),
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
