"""Aligns the clocks of the ranks of a pipeline.

Ranks of the same host share its clock. Between hosts the ends of collectives show the difference, because all ranks
leave a collective at nearly the same time; the offset is the median over several collectives, and their scatter is the
error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from perfscope.analyzers.pipelines.rank_passes import RankPasses
from perfscope.constants import NS_PER_MS

#: Ranks of the same host see the end of a collective microseconds apart.
_SAME_CLOCK_NS = NS_PER_MS


@dataclass(frozen=True, slots=True)
class Clocks:
    """Offsets between the ranks' clocks, and their uncertainty.

    Attributes:
        offset_ns: By stage, to add to the rank's times.
        error_ns: Median deviation of single collectives from the offset; 0 on a common clock.
        is_doubtful: Ranks are on several hosts, and no collective shows how their clocks differ.
    """

    offset_ns: tuple[int, ...]
    error_ns: int
    is_doubtful: bool


def align_clocks(stages: Sequence[RankPasses]) -> Clocks:
    """Align every stage with the clock of the first."""
    first_ends, *ends_of_stages = [_collect_ends(stage) for stage in stages]
    hosts = {stage.host for stage in stages}
    if len(hosts) == 1 and hosts != {""}:
        return Clocks((0,) * len(stages), 0, is_doubtful=False)
    offsets, errors = [0], [0]
    doubtful = False
    for ends in ends_of_stages:
        differences = [first_ends[key] - ends[key] for key in ends.keys() & first_ends.keys()]
        offset = median_low(differences) if differences else 0
        doubtful = doubtful or (not differences and len(hosts) > 1)
        if abs(offset) < _SAME_CLOCK_NS:
            offset = 0
        offsets.append(offset)
        errors.append(
            median_low([abs(difference - offset) for difference in differences]) if differences and offset else 0
        )
    return Clocks(tuple(offsets), max(errors), is_doubtful=doubtful)


def _collect_ends(stage: RankPasses) -> dict[tuple[str, str, int], int]:
    return {(step.label, *key): end_ns for step in stage.steps for key, end_ns in step.collective_ends.items()}
