"""A day of steps through the code that records them: bounded memory, small files, all steps in one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.week import MOST_FILES_MB, MOST_GROWTH_MB, measure

pytestmark = pytest.mark.slow
STEPS = 20_000


def test_many_steps_need_no_more_memory_and_little_space(tmp_path: Path) -> None:
    measured = measure(tmp_path / "run", STEPS)
    assert measured["growth_mb"] < MOST_GROWTH_MB
    assert measured["segments"] == 2 * (STEPS // 8192)
    assert measured["bytes_per_step"] * 1_000_000 < MOST_FILES_MB * 1e6
    # Processes that start apart by some seconds end so: samples outside of the training are not its own.
    assert all(STEPS * 3 // 5 - 60 <= samples < STEPS * 3 // 5 for samples in measured["samples"])
    assert measured["compared_steps"] == STEPS - 2
