"""The guide on comparisons: its commands run, its workflow and its test are executed, its keys exist."""

from __future__ import annotations

import importlib.metadata
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment, perfscope

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


def test_the_plugin_is_registered_for_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"perfscope": "perfscope.testing"}


def pytest_in(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest as in a project of its own; an installation from before the plugin lacks its entry point."""
    is_installed = any(
        point.value == "perfscope.testing" for point in importlib.metadata.entry_points(group="pytest11")
    )
    load = [] if is_installed else ["-p", "perfscope.testing"]
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(folder), *load, *options, str(folder)]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_fixture_of_the_guide_saves_a_baseline_and_compares_with_it(tmp_path: Path) -> None:
    example = GUIDE.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "test_example.py").write_text(example)
    without = pytest_in(tmp_path)
    assert without.returncode == 1
    assert "there is no baseline" in without.stdout
    assert pytest_in(tmp_path, "--perfscope-update").returncode == 0
    assert (tmp_path / "baselines" / "step.json").read_text().startswith('{\n "schema": "perfscope/baseline/1"')
    slow = example.replace("optimizer.step()", "optimizer.step(); __import__('time').sleep(0.05)")
    (tmp_path / "test_example.py").write_text(slow)
    slower = pytest_in(tmp_path)
    assert slower.returncode == 1
    assert "% slower (interval +" in slower.stdout
    assert "step_time>+50% is exceeded" in slower.stdout
