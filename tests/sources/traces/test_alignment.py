"""Two sequences of names that differ here and there: which of their places are the same."""

from __future__ import annotations

import random

import numpy as np
import pytest

from perfscope.sources.traces.matching import align


def pairs_of(first: list[int], second: list[int]) -> list[tuple[int, int]]:
    places, others = align(np.array(first, np.int64), np.array(second, np.int64))
    return list(zip(places.tolist(), others.tolist(), strict=True))


def longest_common(first: list[int], second: list[int]) -> int:
    """The length of the longest sequence that is in both, by the textbook's table."""
    row = [0] * (len(second) + 1)
    for name in first:
        above = row
        row = [0]
        for place, other in enumerate(second):
            row.append(above[place] + 1 if name == other else max(above[place + 1], row[place]))
    return row[-1]


class Layers:
    """A step of layers: each has kernels that always run, and those of the experts that had tokens."""

    def __init__(self, seed: int, experts: float) -> None:
        draw = random.Random(seed)
        self.names: list[int] = []
        self.layer: list[int] = []
        for layer in range(12):
            active = [expert for expert in range(8) if draw.random() < experts]
            kernels = [1, 2, 1, 3, *(name for _ in active for name in (20, 30 + draw.randrange(2), 20)), 4, 5]
            self.names += kernels
            self.layer += [layer] * len(kernels)


def assert_twins(first: list[int], second: list[int], pairs: list[tuple[int, int]]) -> None:
    assert all(first[place] == second[other] for place, other in pairs)
    assert all((np.diff(column) > 0).all() for column in np.array(pairs).reshape(-1, 2).T)


@pytest.mark.parametrize("experts", [0.9, 1])
@pytest.mark.parametrize("seed", range(5))
def test_as_many_as_can_have_a_twin_and_it_is_of_the_same_layer(seed: int, experts: float) -> None:
    first, second = Layers(seed, experts), Layers(1000 + seed, experts)
    pairs = pairs_of(first.names, second.names)
    assert_twins(first.names, second.names, pairs)
    assert len(pairs) == longest_common(first.names, second.names)
    assert all(first.layer[place] == second.layer[other] for place, other in pairs)
