"""Which rows of two sequences of names are the same, where they differ here and there.

The algorithm is that of E. Myers, "An O(ND) difference algorithm and its variations", Algorithmica 1, 1986. The more
both differ, the longer it takes: after many differences it goes on from the furthest end alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from perfscope.tables.columns import Int64

#: With this many differences a path is taken as it is, and goes on from its end.
_MOST_DIFFERENCES = 256
#: Stretches of equal names of a path, the last one first: the rows where it begins, its length, and those before it.
_Path: TypeAlias = "tuple[int, int, int, _Path] | None"


def align(first: Int64, second: Int64) -> tuple[Int64, Int64]:
    """Rows of equal names in both sequences, pair by pair; both rise. What is in no pair has no twin.

    They are as many as possible up to ``_MOST_DIFFERENCES`` names without a twin, and nearly so beyond.
    """
    names, twins = first.tolist(), second.tolist()
    row, twin = 0, 0
    stretches: list[tuple[int, int, int]] = []
    while row < len(names) and twin < len(twins):
        row, twin, path = _follow(names, twins, row, twin)
        found: list[tuple[int, int, int]] = []
        while path is not None:
            start, twin_start, length, path = path
            found.append((start, twin_start, length))
        stretches += reversed(found)
    none = np.zeros(0, np.int64)
    rows = [none, *(np.arange(start, start + length) for start, _, length in stretches)]
    twin_rows = [none, *(np.arange(start, start + length) for _, start, length in stretches)]
    return np.concatenate(rows), np.concatenate(twin_rows)


def _follow(names: Sequence[int], twins: Sequence[int], row: int, twin: int) -> tuple[int, int, _Path]:
    """The path with the fewest differences from a row of both: to the end of both, or as far as it comes."""
    begin = row - twin
    # By diagonal, which is how much further a path is in the one than in the other: how far it is, and what it is.
    furthest: dict[int, tuple[int, _Path]] = {begin + 1: (row, None)}
    for differences in range(_MOST_DIFFERENCES + 1):
        for diagonal in range(begin - differences, begin + differences + 1, 2):
            above, before = furthest.get(diagonal + 1, (-1, None)), furthest.get(diagonal - 1, (-2, None))
            end, path = above if above[0] > before[0] else (before[0] + 1, before[1])
            start = end
            while end < len(names) and end - diagonal < len(twins) and names[end] == twins[end - diagonal]:
                end += 1
            if end > start:
                path = (start, start - diagonal, end - start, path)
            furthest[diagonal] = end, path
            if end >= len(names) and end - diagonal >= len(twins):
                return end, end - diagonal, path
    ends = [(2 * end - diagonal, end, diagonal) for diagonal, (end, _) in furthest.items() if end <= len(names)]
    _, end, diagonal = max(candidate for candidate in ends if candidate[1] - candidate[2] <= len(twins))
    return end, end - diagonal, furthest[diagonal][1]
