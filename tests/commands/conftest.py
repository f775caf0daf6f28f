"""Fixtures of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.commands.report_cli import Run, run


@pytest.fixture
def refresh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `perfscope report refresh` on a text: the run, and the file's bytes after it."""

    def call(text: str | bytes, *options: str) -> tuple[Run, bytes]:
        path = tmp_path / "report.md"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return run(capsys, "report", "refresh", path, *options), path.read_bytes()

    return call
