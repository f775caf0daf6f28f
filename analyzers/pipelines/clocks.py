"""Puts the ranks of a pipeline on one clock.

Ranks of one host share its clock. Between hosts a collective tells the difference, because all its ranks leave it at
nearly the same time; the median over several is taken, and how far they scatter is the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from perfscope.analyzers.pipelines.pieces import RankPieces

#: Clocks of one host differ by microseconds; ends of one collective seen on one clock do too.
_SAME_CLOCK_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Clocks:
    """What to add to each rank's times, and how sure that is.

    Attributes:
        offset_ns: By stage.
        error_ns: Median deviation of single collectives from the offset; 0 on one clock.
        is_doubtful: Ranks are on several hosts and nothing tells how their clocks differ.
    """

    offset_ns: tuple[int, ...]
    error_ns: int
    is_doubtful: bool


def align(stages: Sequence[RankPieces]) -> Clocks:
    """Bring every stage to the clock of the first."""
    meetings = [_meetings(stage) for stage in stages]
    hosts = {stage.host for stage in stages}
    if len(hosts) == 1 and hosts != {""}:
        return Clocks((0,) * len(stages), 0, is_doubtful=False)
    offsets, errors = [0], [0]
    doubtful = False
    for own in meetings[1:]:
        differences = [meetings[0][key] - own[key] for key in own.keys() & meetings[0].keys()]
        offset = median_low(differences) if differences else 0
        doubtful = doubtful or (not differences and len(hosts) > 1)
        if abs(offset) < _SAME_CLOCK_NS:
            offset = 0
        offsets.append(offset)
        errors.append(median_low([abs(one - offset) for one in differences]) if differences and offset else 0)
    return Clocks(tuple(offsets), max(errors), is_doubtful=doubtful)


def _meetings(stage: RankPieces) -> dict[tuple[str, str, int], int]:
    return {(step.label, *key): end_ns for step in stage.steps for key, end_ns in step.meetings.items()}
