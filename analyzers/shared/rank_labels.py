"""How reports name ranks and their devices."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np


class LabelOfRank(Mapping[int, str]):
    """A text for each rank, such as its host, in the order of ranks; of several for one rank the last one counts.

    Numbers and each text once take a tenth of the memory of a dictionary, and ranks may be many.

    >>> dict(LabelOfRank([(2, "b"), (1, "a"), (2, "a")]))
    {1: 'a', 2: 'a'}
    """

    def __init__(self, labels: Iterable[tuple[int, str]]) -> None:
        number_of: dict[str, int] = {}
        ranks, numbers = array("q"), array("q")
        for rank, label in labels:
            ranks.append(rank)
            numbers.append(number_of.setdefault(label, len(number_of)))
        order = np.argsort(np.array(ranks, np.int64), kind="stable")
        in_order = np.array(ranks, np.int64)[order]
        is_last = np.append(in_order[1:] != in_order[:-1], True)[: len(in_order)]
        self._texts = tuple(number_of)
        self._ranks = array("q", in_order[is_last].tobytes())
        self._numbers = array("q", np.array(numbers, np.int64)[order][is_last].tobytes())

    def __getitem__(self, rank: int) -> str:
        row = bisect_left(self._ranks, rank)
        if row == len(self._ranks) or self._ranks[row] != rank:
            raise KeyError(rank)
        return self._texts[self._numbers[row]]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)


def rank_labels(owners: Sequence[tuple[int | None, int]]) -> list[str]:
    """Labels for pairs of rank and device; the device is named where a rank drives several.

    >>> rank_labels([(0, 0), (0, 1), (1, 1), (None, 0)])
    ['0 device 0', '0 device 1', '1', 'unknown']
    """
    first: dict[int | None, int] = {}
    with_several = {rank for rank, device in owners if first.setdefault(rank, device) != device}
    names = ("unknown" if rank is None else str(rank) for rank, _ in owners)
    return [
        f"{name} device {device}" if rank in with_several else name
        for name, (rank, device) in zip(names, owners, strict=True)
    ]


def list_labels(labels: Sequence[str], most: int) -> str:
    """The first labels, and how many others there are.

    >>> list_labels(["0", "1", "2"], 2), list_labels(["0", "1"], 2)
    ('0, 1 and 1 more', '0, 1')
    """
    more = f" and {len(labels) - most:,} more" if len(labels) > most else ""
    return ", ".join(labels[:most]) + more


def rank_cell(ranks: Sequence[int]) -> str | int | None:
    """Ranks as a cell of a table."""
    if not ranks:
        return None
    return ranks[0] if len(ranks) == 1 else ", ".join(str(rank) for rank in ranks)
