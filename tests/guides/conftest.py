"""What the tests of guides share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guides.tree import Tree, copy_tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A fresh copy of the tree."""
    return copy_tree(tmp_path)
