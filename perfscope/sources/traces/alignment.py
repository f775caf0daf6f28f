"""Which places of two sequences of names are the same, where they differ here and there.

The algorithm is that of E. Myers, "An O(ND) difference algorithm and its variations", Algorithmica 1, 1986. The more
both differ, the longer it takes: after many differences it goes on from the furthest place alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from perfscope.tables.columns import Int64

#: With this many differences a path is taken as it is, and goes on from its end.
_MOST_DIFFERENCES = 256
#: Stretches of equal names of a path, the last one first: the places where it begins, its length, and those before it.
_Path: TypeAlias = "tuple[int, int, int, _Path] | None"


def align(first: Int64, second: Int64) -> tuple[Int64, Int64]:
    """Places of equal names in both sequences, pair by pair; both rise. What is in no pair has no twin.

    They are as many as possible up to ``_MOST_DIFFERENCES`` names without a twin, and nearly so beyond.
    """
    names, others = first.tolist(), second.tolist()
    place, other = 0, 0
    stretches: list[tuple[int, int, int]] = []
    while place < len(names) and other < len(others):
        place, other, path = _follow(names, others, place, other)
        found: list[tuple[int, int, int]] = []
        while path is not None:
            start, other_start, length, path = path
            found.append((start, other_start, length))
        stretches += reversed(found)
    none = np.zeros(0, np.int64)
    places = [none, *(np.arange(start, start + length) for start, _, length in stretches)]
    twins = [none, *(np.arange(start, start + length) for _, start, length in stretches)]
    return np.concatenate(places), np.concatenate(twins)


def _follow(names: Sequence[int], others: Sequence[int], place: int, other: int) -> tuple[int, int, _Path]:
    """The path with the fewest differences from a place in both: to the end of both, or as far as it comes."""
    begin = place - other
    # By diagonal, which is how much further a path is in the one than in the other: how far it is, and what it is.
    furthest: dict[int, tuple[int, _Path]] = {begin + 1: (place, None)}
    for differences in range(_MOST_DIFFERENCES + 1):
        for diagonal in range(begin - differences, begin + differences + 1, 2):
            above, before = furthest.get(diagonal + 1, (-1, None)), furthest.get(diagonal - 1, (-2, None))
            at, path = above if above[0] > before[0] else (before[0] + 1, before[1])
            start = at
            while at < len(names) and at - diagonal < len(others) and names[at] == others[at - diagonal]:
                at += 1
            if at > start:
                path = (start, start - diagonal, at - start, path)
            furthest[diagonal] = at, path
            if at >= len(names) and at - diagonal >= len(others):
                return at, at - diagonal, path
    inside = [row for row in furthest.items() if row[1][0] <= len(names) and row[1][0] - row[0] <= len(others)]
    diagonal, (at, path) = max(inside, key=lambda row: 2 * row[1][0] - row[0])
    return at, at - diagonal, path
