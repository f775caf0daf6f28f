"""A copy of the tree, in which a test does what a guide of CONTRIBUTING tells a contributor to do."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT, Ended, perfscope

_SOURCE_FOLDERS = ("perfscope", "analyzers", "hooks")
_DATA_FOLDERS = ("fixtures", "tests")


@dataclass(frozen=True)
class Tree:
    """A copy of the source folders; the folders of fixtures and tests are links.

    Attributes:
        root: The folder of the copy, from which commands are run.
    """

    root: Path

    def add_file(self, path: str, text: str) -> None:
        """Write a new file; a guide that promises a new file must not overwrite one."""
        target = self.root / path
        assert not target.exists(), f"{path} exists already"
        target.write_text(text)

    def add_line(self, path: str, line: str, *, before: str) -> None:
        """Insert a line before the only line that holds a text, indented as that line is."""
        target = self.root / path
        lines = target.read_text().splitlines()
        (row,) = [row for row, existing in enumerate(lines) if before in existing]
        indent = lines[row][: len(lines[row]) - len(lines[row].lstrip())]
        lines.insert(row, indent + line)
        target.write_text("\n".join(lines) + "\n")

    def perfscope(self, *words: str | Path, **variables: str) -> Ended:
        """Run the copy's command line in its folder."""
        return perfscope(*words, cwd=self.root, **{"PYTHONPATH": str(self.root), **variables})


def copy_tree(root: Path) -> Tree:
    """Copy the tree into an empty folder."""
    for folder in _SOURCE_FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, root / folder, symlinks=True, ignore=ignored)
    for folder in _DATA_FOLDERS:
        (root / folder).symlink_to(ROOT / folder)
    return Tree(root)
