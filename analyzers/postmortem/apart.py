"""Ranks that all wait in collectives, and not in the same one, by their stacks alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perfscope.analyzers.postmortem.places import Place, locate
from perfscope.tables.postmortem import CodeLine, PostMortem
from perfscope.units import format_ranges


class Apart(NamedTuple):
    """The ranks to look at, all of them where no side is larger; where each stands; the line of one to look at."""

    ranks: tuple[int, ...]
    text: str
    line: CodeLine | None


def find_apart(evidence: PostMortem, places: Mapping[int, Place | None]) -> Apart | None:
    """Where ranks wait in different collectives; a rank that died of it stood where its traceback says."""
    sides: dict[str, list[int]] = {}
    spots: dict[int, Place] = {}
    for rank, state in sorted(evidence.ranks.items()):
        spot = places[rank] or locate(state.failure.frames if state.failure else ())
        if spot is None or not spot.collective:
            return None
        spots[rank] = spot
        sides.setdefault(spot.collective, []).append(rank)
    if len(sides) < 2 or len(spots) < evidence.world_size:  # noqa: PLR2004 - one collective
        return None
    usual, *rest = sorted(sides.values(), key=lambda side: -len(side))
    culprits = tuple(rank for side in rest for rank in side) if len(usual) > len(rest[0]) else tuple(spots)
    stand = "; ".join(f"rank {format_ranges(side)} in {name}, {spots[side[0]]}" for name, side in sides.items())
    return Apart(culprits, f"ranks stand in different collectives: {stand}", spots[culprits[0]].line)
