"""The packages that are installed are those of the tree, and the documents' examples and links hold."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import perfscope as package
from docs._build.site import GENERATED
from tests.conftest import ROOT, environment, perfscope

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
HOMES = {"perfscope": "perfscope", "analyzers": "perfscope.analyzers", "hooks": "perfscope.hooks"}


def test_every_folder_with_modules_is_a_listed_package() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = set()
    for top, name in HOMES.items():
        for module in (ROOT / top).rglob("*.py"):
            folder = module.relative_to(ROOT / top).parent
            if not any((ROOT / top).joinpath(*folder.parts[: n + 1]).is_symlink() for n in range(len(folder.parts))):
                found.add(".".join([name, *folder.parts]))
    assert found - {"perfscope.entry"} == listed - {"perfscope_toolkit"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel is built from, without anything that was built in the tree."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in HOMES:
        unwanted = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=unwanted)
    return folder


def build(sources: Path, kind: str) -> set[str]:
    """The names of what a distribution holds, as setuptools builds it."""
    for rest in ("build", "dist"):
        shutil.rmtree(sources / rest, ignore_errors=True)
    command = [sys.executable, "-c", "from setuptools import setup; setup()", "-q", kind]
    ended = subprocess.run(command, cwd=sources, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    (file,) = (sources / "dist").iterdir()
    return set(zipfile.ZipFile(file).namelist())


@pytest.mark.slow
def test_a_wheel_is_of_pure_python(sources: Path) -> None:
    names = build(sources, "bdist_wheel")
    assert not [name for name in names if name.endswith(".so")]
    assert {"perfscope/hooks/capture.py", "perfscope/analyzers/steps.py", "perfscope/cli.py"} <= names
    (file,) = (sources / "dist").iterdir()
    assert file.name.endswith("-py3-none-any.whl")


def test_the_version_is_in_the_changelog() -> None:
    assert f"## {package.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    made = {ROOT / "docs" / name for name in GENERATED}
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        path = document.parent / target
        assert target.startswith("https://") or path.exists() or path in made, target


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


def test_the_two_commands_of_the_readme_are_targets_that_set_themselves_up() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"```sh\nmake {target}\n```" in (ROOT / "README.md").read_text()
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    lines = re.findall(r"^\.venv/bin/pip install (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [line.replace(" -q", "") for line in lines] == re.findall(r"pip install -q (.*)$", makefile, re.MULTILINE)
