"""The tutorial, followed to the letter on this machine: a fault found, mended, and shown to be mended."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT, perfscope

pytestmark = pytest.mark.slow

README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(console|diff)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d[\d,.]*")
#: A time has the unit that fits it.
TIME = re.compile(r"(-?\d[\d,.]*) (?:ms|s|us)\b")


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
