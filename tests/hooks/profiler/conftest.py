"""What the tests of compressors and of those who measure behind them share."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.engine import partials_at_capture
from perfscope.hooks.profiler import compress


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock and a queue of its own, and no limits for the process of the tests."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(compress, "_TEMPORARY", str(tmp_path / "tmp"))
    monkeypatch.setattr(partials_at_capture, "_TEMPORARY", str(tmp_path / "tmp"))
    monkeypatch.setattr(partials_at_capture, "limit_resources", lambda: None)
