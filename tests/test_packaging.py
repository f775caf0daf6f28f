"""The packages that are installed are those of the tree, and the documents' examples and links hold."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment, perfscope

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "reports").rglob("*.md")])
HOMES = {"perfscope": "perfscope", "analyzers": "perfscope.analyzers", "hooks": "perfscope.hooks"}


def test_every_folder_with_modules_is_a_listed_package() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = set()
    for top, name in HOMES.items():
        for module in (ROOT / top).rglob("*.py"):
            folder = module.relative_to(ROOT / top).parent
            if not any((ROOT / top).joinpath(*folder.parts[: n + 1]).is_symlink() for n in range(len(folder.parts))):
                found.add(".".join([name, *folder.parts]))
    assert found - {"perfscope.entry"} == listed - {"perfscope_toolkit", "perfscope.page.findings"}


@pytest.mark.slow
def test_a_wheel_is_of_pure_python(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in HOMES:
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs" / "findings", tmp_path / "docs" / "findings")
    command = [sys.executable, "-c", "from setuptools import setup; setup()", "-q", "bdist_wheel"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    (file,) = (tmp_path / "dist").iterdir()
    assert file.name.endswith("-py3-none-any.whl")
    names = set(zipfile.ZipFile(file).namelist())
    assert {"perfscope/hooks/capture.py", "perfscope/analyzers/steps.py", "perfscope/cli.py"} <= names
    assert "perfscope/page/findings/host_pauses.md" in names, "the page explains findings without a checkout"


@pytest.fixture(scope="module")
def in_clone() -> set[Path]:
    """Every file that git holds, and the folders around them."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {ROOT / name for name in listed.splitlines()}
    return files.union(*(file.parents for file in files))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_of_a_clone(document: Path, in_clone: set[Path]) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
        assert target.startswith("https://") or Path(os.path.normpath(document.parent / target)) in in_clone, target


def readme_answers() -> list[str]:
    """The commands of the README's tables that name everything they need."""
    commands = re.findall(r"`perfscope ([^`]+)`", (ROOT / "README.md").read_text())
    return [
        command for command in commands if " --" in command and not re.search(r"[A-Z]{3,}|md\|json|^profile", command)
    ]


@pytest.mark.parametrize("command", readme_answers())
def test_commands_that_the_readme_shows_answer(command: str) -> None:
    ended = perfscope(*shlex.split(command), cwd=ROOT)
    assert ended.code == 0, ended.stderr
    assert ended.stdout.startswith("# ")
