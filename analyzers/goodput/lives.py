"""The lives of a job: each start of its processes, with its steps and what else its time went to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfscope.analyzers.shared.parts import Spent
from perfscope.tables.columns import Int64


@dataclass(frozen=True, slots=True, eq=False)
class Life:
    """One start of a job, on the wall clock, as far as that was recorded.

    ``iteration`` numbers steps in the whole job. ``other_ns`` and the steps add up to the whole life exactly.
    ``is_numbered``: a framework numbers its iterations through restarts.
    """

    name: str
    start_ns: int
    end_ns: int
    iteration: Int64
    step_ns: Int64
    is_skipped: np.ndarray[tuple[int], np.dtype[np.bool_]]
    other_ns: dict[Spent, int]
    saved_steps: tuple[int, ...] = ()
    ranks: int | None = None
    is_numbered: bool = True
    ends_by_itself: bool = False

    def __post_init__(self) -> None:
        """Every nanosecond is in one place."""
        parts_ns = int(self.step_ns.sum()) + sum(self.other_ns.values())
        assert parts_ns == self.end_ns - self.start_ns, "the parts of a life do not add up to it"


def number_steps(lives: Sequence[Life]) -> tuple[list[Int64], list[int | None]]:
    """The number of each step in the whole job, and the step after which each life went on; None for the first.

    Where the framework does not number iterations, a life is taken to resume from the last earlier checkpoint. Where
    nothing was saved, it starts from the beginning.
    """
    numbers: list[Int64] = []
    resumed: list[int | None] = []
    saved = 0
    for index, life in enumerate(lives):
        if life.is_numbered:
            offset = 0
            base = int(life.iteration[0]) - 1 if len(life.iteration) else saved
        else:
            offset = base = saved if index else 0
        numbers.append(life.iteration + offset)
        resumed.append(base if index else None)
        for step in life.saved_steps:
            saved = step + offset
    return numbers, resumed


def begin_after_each_other(lives: Sequence[Life]) -> list[Life]:
    """The lives in their order, by their ends.

    A process can be older than what it runs: a shell that starts one training after the other becomes the last of them.
    The time until the life before it ended is no part of its start-up.
    """
    ordered: list[Life] = []
    for life in sorted(lives, key=lambda life: (life.end_ns, life.start_ns)):
        start_up_ns = life.other_ns.get(Spent.START, 0)
        early_ns = max(max((former.end_ns for former in ordered), default=0) - life.start_ns, 0)
        clipped_ns = min(early_ns, start_up_ns)
        apart_ns = {**life.other_ns, Spent.START: start_up_ns - clipped_ns}
        ordered.append(replace(life, start_ns=life.start_ns + clipped_ns, other_ns=apart_ns))
    return ordered
