"""What the tests of those who measure share."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.engine import partials_at_capture


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of its own, and no limits for the process of the tests."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(partials_at_capture, "_TEMPORARY", str(tmp_path / "tmp"))
    monkeypatch.setattr(partials_at_capture, "limit_resources", lambda: None)
