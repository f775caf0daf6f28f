"""The console examples of some guides print what they say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import ROOT, perfscope

GUIDES = (
    *("gpus.md", "nodes.md", "frameworks.md", "wall-clock.md", "merge.md", "findings.md", "page.md"),
    *("watch.md", "postmortem.md", "terminal.md", "goodput.md", "stragglers.md", "modules.md", "roofline.md"),
)


@pytest.mark.parametrize("guide", GUIDES)
def test_examples_print_what_they_say(guide: str, tmp_path: Path) -> None:
    """A line ``...`` stands for any lines, and at a line's end for its rest; each guide's examples share a folder."""
    for folder in ("fixtures", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "docs" / guide).read_text(), re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    assert parts
    for part in parts:
        command, *output = part.splitlines()
        program, *words = shlex.split(command)
        assert program == "perfscope"
        ended = perfscope(*words, cwd=tmp_path)
        assert ended.code == 0, ended.stderr
        pattern = "".join(_pattern(line) for line in output)
        assert re.fullmatch(pattern, ended.stdout), ended.stdout


def _pattern(line: str) -> str:
    if line == "...":
        return r"(?:.*\n)*?"
    return re.escape(line.removesuffix("...")) + (r".*\n" if line.endswith("...") else r"\n")
