"""What the time of a whole job went to, over all of its restarts: every nanosecond in one part.

A step is useful where its result was kept. Where a later start of the job went on from before it, it was redone: the
first time was lost. Between two starts the job is down. What a start needs before its first step is its start-up, or
the cost of a restart from the second one on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.analyzers.goodput.from_run import find_lives
from perfscope.analyzers.goodput.lives import Life, begin_after_each_other, number_steps
from perfscope.analyzers.goodput.result import Goodput, Start
from perfscope.analyzers.shared.parts import Spent
from perfscope.errors import MissingInput
from perfscope.tables.run import Run


def analyze(run: Run) -> Goodput:
    """The goodput of a run, over the restarts of its launcher.

    Raises:
        MissingInput: No step was recorded.
    """
    return account(find_lives(run))


def account(lives: Sequence[Life]) -> Goodput:
    """Add up the lives of one job.

    Raises:
        MissingInput: No step was recorded.
    """
    lives = begin_after_each_other(lives)
    if not any(len(life.iteration) for life in lives):
        raise MissingInput("no training step was recorded")
    numbers, resumed = number_steps(lives)
    spent = dict.fromkeys(Spent, 0)
    starts: list[Start] = []
    overlap_ns = 0
    last_end_ns: int | None = None
    for index, (life, iteration) in enumerate(zip(lives, numbers, strict=True)):
        later = [int(numbering[0]) for numbering in numbers[index + 1 :] if len(numbering)]
        is_redone = iteration >= min(later) if later else np.zeros(len(iteration), np.bool_)
        redone_ns = int(life.step_ns[is_redone].sum())
        skipped_ns = int(life.step_ns[~is_redone & life.is_skipped].sum())
        spent[Spent.REDONE] += redone_ns
        spent[Spent.SKIPPED] += skipped_ns
        spent[Spent.USEFUL] += int(life.step_ns.sum()) - redone_ns - skipped_ns
        is_last = index == len(lives) - 1
        for part, part_ns in life.other_ns.items():
            spent[_place(part, is_first=index == 0, is_last=is_last)] += part_ns
        down_ns = 0 if last_end_ns is None else life.start_ns - last_end_ns
        overlap_ns += max(-down_ns, 0)
        spent[Spent.DOWN] += max(down_ns, 0)
        starts.append(
            Start(life.name, life.end_ns - life.start_ns, max(down_ns, 0), len(iteration), int(is_redone.sum()),
                  redone_ns, resumed[index], life.ends_by_itself)
        )  # fmt: skip
        last_end_ns = life.end_ns if last_end_ns is None else max(last_end_ns, life.end_ns)
    wall_ns = sum(start.wall_ns + start.down_before_ns for start in starts)
    assert sum(spent.values()) == wall_ns, "the parts do not add up to the wall time"
    ranks = max((life.ranks or 0 for life in lives), default=0) or None
    is_assumed = len(lives) > 1 and not all(life.is_numbered for life in lives)
    return Goodput(wall_ns, spent, tuple(starts), ranks, overlap_ns, is_assumed)


def _place(part: Spent, *, is_first: bool, is_last: bool) -> Spent:
    if part is Spent.START and not is_first:
        return Spent.RESTARTS
    return Spent.RESTARTS if part is Spent.END and not is_last else part
