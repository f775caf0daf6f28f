"""Durations as ratios of two works of one test: machines differ in speed, and their noise only ever adds to a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

#: How often both are done at most.
ROUNDS = 8


def assert_ratio(work: Callable[[], Result], reference: Callable[[], object], most: float) -> Result:
    """Assert that a work takes at most so many times the processor time of another; returns what the work returns.

    Both are done in turns until the ratio of their shortest times is small enough, at most eight times.
    """
    shortest = shortest_reference = float("inf")
    for _ in range(ROUNDS):
        reference_s, _ignored = _measure(reference)
        duration_s, result = _measure(work)
        shortest, shortest_reference = min(shortest, duration_s), min(shortest_reference, reference_s)
        if shortest <= most * shortest_reference:
            return result
    raise AssertionError(f"{shortest:.3f} s, {shortest / shortest_reference:.1f} times the reference, not {most}")


def count_to(number: int) -> Callable[[], None]:
    """A work of so many turns of an empty loop: 100 million of them take a few seconds."""

    def count() -> None:
        for _ in range(number):
            pass

    return count


def _measure(work: Callable[[], Result]) -> tuple[float, Result]:
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result
