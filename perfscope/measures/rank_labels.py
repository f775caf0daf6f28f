"""How reports name ranks and their devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Protocol, TypeVar


class _OfRank(Protocol):
    @property
    def rank(self) -> int | None: ...


_T = TypeVar("_T", bound=_OfRank)


def in_order(ranks: Iterable[_T], *further: str) -> tuple[_T, ...]:
    """Parts of a result by their rank, those without one last, and then by further fields."""
    by = [attrgetter(name) for name in further]
    return tuple(sorted(ranks, key=lambda part: (part.rank is None, part.rank or 0, *(get(part) for get in by))))


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


def rank_cell(ranks: Sequence[int]) -> str | int | None:
    """Ranks as a cell of a table."""
    if not ranks:
        return None
    return ranks[0] if len(ranks) == 1 else ", ".join(str(rank) for rank in ranks)
