"""One side of a comparison: what is known of a training, wherever it was read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from perfscope.analyzers.budget.result import Budget
from perfscope.analyzers.comparison.change import Samples
from perfscope.errors import PerfscopeError


class Kind(StrEnum):
    """What a side was read from."""

    RUN = "run"
    TRACES = "traces"
    LOG = "log"
    BASELINE = "baseline"


class Figure(StrEnum):
    """A figure that is compared; the names are those of limits and of JSON."""

    STEP_TIME = "step_time"
    THROUGHPUT = "throughput"
    TFLOPS = "tflops"
    MEMORY = "memory"
    ENERGY = "energy"
    EXPOSED_COMMUNICATION = "exposed_communication"


@dataclass(frozen=True, slots=True)
class Setup:
    """What was trained, on what; absent where it is not known.

    Attributes:
        model: Its class, or what a log calls it.
        parameters: Parameters of all of it.
        dimensions: Layers, hidden size and vocabulary.
        gpus: Ranks, or GPUs.
        device: Name of the GPU; ``cpu`` where there was none.
        dtype: Type of the products, or of the weights.
        samples, tokens: Of a step over all ranks.
        versions: Versions of software, by package.
    """

    model: str | None = None
    parameters: int | None = None
    dimensions: tuple[int, ...] | None = None
    gpus: int | None = None
    device: str | None = None
    dtype: str | None = None
    samples: float | None = None
    tokens: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One side.

    Attributes:
        name: What was typed.
        kind: What it was read from.
        setup: What was trained.
        step_time_s: Times of the undisturbed steps in seconds, a series for each run; absent where unknown.
        is_profiled: Whether these are the times of profiled steps, because nothing else is known.
        tflop_per_step: Operations of a step and GPU in 10**12, and the convention that they are counted by.
        memory_bytes: Peak memory of tensors of the rank with the largest; one a run.
        energy_j: Energy of each undisturbed step over all GPUs, a series for each run.
        budget: What a profiled step is made of; of several runs that of the first with traces.
        reasons: Why a figure, or ``budget``, is absent.
        notes: What a reader must know.
        damage: What could not be read.
    """

    name: str
    kind: Kind
    setup: Setup
    step_time_s: Samples | None = None
    is_profiled: bool = False
    tflop_per_step: tuple[float, str] | None = None
    memory_bytes: Samples | None = None
    energy_j: Samples | None = None
    budget: Budget | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()

    def why_absent(self, name: str) -> str:
        """Why a figure of this side is absent."""
        return f"{self.name}: {self.reasons.get(name, f'a {self.kind} does not state it')}"


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
    return replace(
        of_budget,
        name=name,
        step_time_s=_join([side.step_time_s for side in sides]),
        memory_bytes=_join([side.memory_bytes for side in sides]),
        energy_j=_join([side.energy_j for side in sides]),
        notes=(*dict.fromkeys(note for side in sides for note in side.notes),),
        damage=tuple(f"{side.name}: {line}" for side in sides for line in side.damage),
    )


def _join(samples: Sequence[Samples | None]) -> Samples | None:
    stated = [sample for sample in samples if sample is not None]
    if not stated or len(stated) < len(samples):
        return None
    return Samples(tuple(run for sample in stated for run in sample.runs), stated[0].is_mean)
