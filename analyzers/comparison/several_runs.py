"""Several runs of the same training as one side: the run is the unit, and their spread is that between runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfscope.analyzers.comparison.change import Samples
from perfscope.analyzers.comparison.side import Side
from perfscope.errors import PerfscopeError

#: A single step may be the same by chance, where times are rounded.
_FEWEST_STEPS = 2
_SAME_PARAMETERS = ("parameters", "gpus", "dimensions")


def join_runs(name: str, sides: Sequence[Side]) -> Side:
    """One side of several runs; its budget is that of the first run with traces.

    A run that is named twice counts once: its copy would show that runs do not vary.

    Raises:
        PerfscopeError: They are not runs of the same training, or there is none.
    """
    if not sides:
        raise PerfscopeError(f"{name!r} names no run", hint="several runs of a side: A1,A2,A3")
    distinct = [side for place, side in enumerate(sides) if not any(_is_copy(side, each) for each in sides[:place])]
    copies = len(sides) - len(distinct)
    if copies:
        note = f"{name}: {copies} of its {len(sides)} runs are copies of others, with the same steps, and do not count."
        distinct[0] = replace(distinct[0], notes=(*distinct[0].notes, note))
    if len(distinct) == 1:
        return replace(distinct[0], name=name)
    return _join_distinct(name, distinct)


def _is_copy(side: Side, other: Side) -> bool:
    """Whether two runs have the same steps, to the nanosecond."""
    series = [each.step_time_s.runs if each.step_time_s else () for each in (side, other)]
    if not series[0] or len(series[0]) != len(series[1]) or max(map(len, series[0])) < _FEWEST_STEPS:
        return False
    return all(map(np.array_equal, *series))


def _join_distinct(name: str, sides: Sequence[Side]) -> Side:
    first = sides[0]
    for side in sides[1:]:
        for fact in _SAME_PARAMETERS:
            values = getattr(first.setup, fact), getattr(side.setup, fact)
            if None not in values and values[0] != values[1]:
                raise PerfscopeError(
                    f"{first.name} and {side.name} did not train the same: {fact} {values[0]} and {values[1]}",
                    hint="a side is one run, or several runs of the same training",
                )
    of_budget = next((side for side in sides if side.budget is not None), first)
    clocks = [side.clock_mhz for side in sides if side.clock_mhz is not None]
    return replace(
        of_budget,
        name=name,
        step_time_s=_join([side.step_time_s for side in sides]),
        memory_bytes=_join([side.memory_bytes for side in sides]),
        energy_j=_join([side.energy_j for side in sides]),
        clock_mhz=sum(clocks) / len(clocks) if len(clocks) == len(sides) else None,
        notes=(*dict.fromkeys(note for side in sides for note in side.notes),),
        damage=tuple(f"{side.name}: {line}" for side in sides for line in side.damage),
    )


def _join(samples: Sequence[Samples | None]) -> Samples | None:
    stated = [sample for sample in samples if sample is not None]
    if not stated or len(stated) < len(samples):
        return None
    return Samples(tuple(run for sample in stated for run in sample.runs), stated[0].is_mean)
