"""Aligns the clocks of the ranks of a pipeline.

Ranks of the same host share its clock. Between hosts the ends of collectives show the difference
(``perfscope.analyzers.shared.clock_offsets``), and their scatter is the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.pipelines.rank_passes import CollectiveRun, RankPasses
from perfscope.analyzers.shared.clock_offsets import Offset, find_offset
from perfscope.constants import NS_PER_MS

#: Ranks of the same host see the end of a collective microseconds apart.
_SAME_CLOCK_NS = NS_PER_MS


@dataclass(frozen=True, slots=True)
class Clocks:
    """Offsets between the ranks' clocks, and their uncertainty.

    Attributes:
        offset_ns: By stage, to add to the rank's times.
        error_ns: The residual of the offset; 0 on a common clock.
        is_doubtful: Ranks are on several hosts, and no collective shows how their clocks differ.
    """

    offset_ns: tuple[int, ...]
    error_ns: int
    is_doubtful: bool


def align_clocks(stages: Sequence[RankPasses]) -> Clocks:
    """Align every stage with the clock of the first."""
    first, *others = [_collect(stage) for stage in stages]
    hosts = {stage.host for stage in stages}
    if len(hosts) == 1 and hosts != {""}:
        return Clocks((0,) * len(stages), 0, is_doubtful=False)
    offsets, errors = [0], [0]
    doubtful = False
    for runs in others:
        common = sorted(runs.keys() & first.keys())
        doubtful = doubtful or (not common and len(hosts) > 1)
        offset = error = 0
        if common:
            found = _find_offset([first[key] for key in common], [runs[key] for key in common])
            if abs(found.offset_ns) >= _SAME_CLOCK_NS:
                offset, error = -round(found.offset_ns), round(found.residual_ns)
        offsets.append(offset)
        errors.append(error)
    return Clocks(tuple(offsets), max(errors), is_doubtful=doubtful)


def _find_offset(first: Sequence[CollectiveRun], runs: Sequence[CollectiveRun]) -> Offset:
    """The clock of a rank against that of the first, by collectives that both made."""
    ends = np.array([[run.end_ns for run in side] for side in (first, runs)], np.int64)
    durations = np.array([[run.duration_ns for run in side] for side in (first, runs)], np.int64)
    return find_offset(ends[1] - ends[0], durations[0] - durations[1], durations.min(axis=0))


def _collect(stage: RankPasses) -> dict[tuple[str, str, int], CollectiveRun]:
    return {(step.label, *key): run for step in stage.steps for key, run in step.collectives.items()}
