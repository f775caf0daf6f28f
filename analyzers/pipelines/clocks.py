"""Aligns the clocks of the ranks of a pipeline.

Ranks of the same host share its clock. Between hosts the ends of collectives show the difference
(``perfscope.analyzers.shared.clock_offsets``), and their scatter is the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.pipelines.rank_passes import CollectiveRun, RankPasses
from perfscope.analyzers.shared.clock_offsets import Offset, find_offset, is_apart


@dataclass(frozen=True, slots=True)
class Clocks:
    """Offsets between the ranks' clocks, and their uncertainty.

    Attributes:
        offset_ns: By stage, to add to the rank's times.
        error_ns: The residual of the offset; 0 on a common clock; absent where ranks are on several hosts, and no
            collective shows how their clocks differ.
    """

    offset_ns: tuple[int, ...]
    error_ns: int | None


def align_clocks(stages: Sequence[RankPasses]) -> Clocks:
    """Align every host with the clock of the first stage's."""
    hosts: dict[str | int, list[RankPasses]] = {}
    for index, stage in enumerate(stages):
        hosts.setdefault(stage.host or index, []).append(stage)
    first, *others = hosts.values()
    offsets = {id(stage): 0 for stage in stages}
    errors, is_shown = [0], True
    for members in others:
        offset = min(_find_offsets(first, members), key=lambda one: one.residual_ns, default=None)
        names = first[0].host, members[0].host
        if offset is None:
            is_shown = is_shown and not all(names)
        elif is_apart(*names, offset):
            offsets |= {id(stage): -round(offset.offset_ns) for stage in members}
            errors.append(round(offset.residual_ns))
    return Clocks(tuple(offsets.values()), max(errors) if is_shown else None)


def _find_offsets(first: Sequence[RankPasses], others: Sequence[RankPasses]) -> Iterator[Offset]:
    """The clock of a host against another one, by the collectives that any two of their ranks made together."""
    runs_of_others = [_collect(stage) for stage in others]
    for runs_of_first in map(_collect, first):
        for runs in runs_of_others:
            common = sorted(runs.keys() & runs_of_first.keys())
            if common:
                yield _find_offset([runs_of_first[key] for key in common], [runs[key] for key in common])


def _find_offset(first: Sequence[CollectiveRun], runs: Sequence[CollectiveRun]) -> Offset:
    """The clock of a rank against that of the first, by collectives that both made."""
    ends = np.array([[run.end_ns for run in side] for side in (first, runs)], np.int64)
    durations = np.array([[run.duration_ns for run in side] for side in (first, runs)], np.int64)
    return find_offset(ends[1] - ends[0], durations[0] - durations[1], durations.min(axis=0))


def _collect(stage: RankPasses) -> dict[tuple[str, str, int], CollectiveRun]:
    return {(step.label, *key): run for step in stage.steps for key, run in step.collectives.items()}
