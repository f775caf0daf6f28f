"""What the benchmark of instructions says of blocks of steps, and that its window lies in one block."""

from __future__ import annotations

import pytest

from benchmarks.instructions import choose_window, summarize

AHEAD, BEHIND = [300.0, 100.0, 101.0, 99.0, 100.0, 100.0], [101.0, 103.0] * 4


def test_blocks_behind_the_window_are_compared_with_those_ahead_of_it_but_the_first() -> None:
    figures = summarize("plain", 20, [*AHEAD, 900.0, *BEHIND])
    assert figures["change_percent"] == pytest.approx(2.0)
    assert figures["error_percent"] == pytest.approx(100 * (0.5 / 5 + (8 / 7) / 8) ** 0.5 / 100)
    assert (figures["ahead"], figures["behind"]) == (AHEAD[1:], BEHIND)


@pytest.mark.parametrize("steps", [6, 20])
def test_the_window_opens_and_ends_in_the_block_that_is_left_out(steps: int) -> None:
    first, last = map(int, choose_window(steps).split("-"))
    assert 6 * steps < first - 1 <= last < 7 * steps
