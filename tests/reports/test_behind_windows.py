"""What the benchmark of pairs on the same cores says of the steps behind a window."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.behind_windows import Pair, summarize


def pair(change: float, seed: int, *, is_captured: bool = True) -> Pair:
    """A process that is a tenth slower than its twin all along, on cores that drift by a third and by chance."""
    chance = random.Random(seed)
    drift = [0.01 * (1 + 0.3 * math.sin(block / 5 + seed)) for block in range(64)]
    noisy = [[seconds * chance.gauss(1, 0.02) for seconds in drift] for _ in range(2)]
    ours = [1.1 * seconds for seconds in noisy[0]]
    behind = [(1 + change) * seconds for seconds in ours[32:]]
    return Pair(ours[:32], noisy[1][:32], behind, noisy[1][32:], is_captured)


def test_drift_and_what_the_processes_differ_by_cancel_out() -> None:
    unchanged = summarize([pair(0.0, seed) for seed in range(16)], steps=100)
    slower = summarize([pair(0.02, seed) for seed in range(16)], steps=100)
    assert unchanged["pairs"] == slower["pairs"] == 16
    assert unchanged["error_percent"] < 0.3
    assert abs(unchanged["change_percent"]) < 3 * unchanged["error_percent"]
    assert slower["change_percent"] - unchanged["change_percent"] == pytest.approx(2.0, abs=0.05)


def test_windows_of_a_bare_profiler_are_apart() -> None:
    figures = summarize([*(pair(0.0, seed) for seed in range(8)), pair(0.3, 9, is_captured=False)], steps=100)
    assert figures["pairs"] == 8
    assert len(figures["changes_percent"]) == 8
    assert figures["profiler"]["pairs"] == 1
    assert figures["profiler"]["change_percent"] == pytest.approx(30, abs=3)
    assert figures["profiler"]["error_percent"] is None
    assert summarize([pair(0.0, 1)], steps=100)["profiler"] is None


def test_a_change_is_that_of_each_block_beside_its_twins() -> None:
    figures = summarize([Pair([0.02, 0.03], [0.01, 0.02], [0.04, 0.03], [0.02, 0.015], is_captured=True)], steps=4)
    assert figures["change_percent"] == pytest.approx(100 * (2 / math.sqrt(2 * 1.5) - 1))
    assert (figures["before_ms"], figures["bare_after_ms"]) == (pytest.approx(25.0), pytest.approx(17.5))
