"""What a test of the hooks leaves behind in this process is not there for the next one."""

from __future__ import annotations

import pytest

from perfscope.hooks.open_window import OPEN_WINDOW


@pytest.fixture(autouse=True)
def no_window_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture whose steps ended in its window leaves this open."""
    monkeypatch.setattr(OPEN_WINDOW, "is_open", False)
    monkeypatch.setattr(OPEN_WINDOW, "records_ranges", False)
