"""The lives of a job from the times of its logs: a log can hold several, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import numpy as np

from perfscope.analyzers.goodput.lives import Life
from perfscope.analyzers.shared.parts import Spent
from perfscope.tables.logged_moments import LoggedMoment, LoggedMoments


def find_logged_lives(log: LoggedMoments) -> list[Life]:
    """The starts of a job in one log; where the number of the iteration goes back, a new one began."""
    parts: list[list[LoggedMoment]] = [[]]
    for moment in log.moments:
        if parts[-1] and moment.iteration <= parts[-1][-1].iteration:
            parts.append([])
        parts[-1].append(moment)
    lives = []
    start_ns = log.first_ns
    for number, moments in enumerate(parts, 1):
        end_ns = log.last_ns if number == len(parts) else moments[-1].t_ns
        lives.append(_to_life(f"{log.path}, start {number}", start_ns, max(end_ns, start_ns), moments, log.ranks))
        start_ns = max(end_ns, start_ns)
    return lives


def _to_life(name: str, start_ns: int, end_ns: int, moments: Sequence[LoggedMoment], ranks: int | None) -> Life:
    usual_ns = _usual_step_ns(moments)
    apart_ns = dict.fromkeys(Spent, 0)
    iterations: list[int] = []
    times: list[int] = []
    now_ns = start_ns
    before = moments[0].iteration - _first_span(moments)
    for index, moment in enumerate(moments):
        count = moment.iteration - before
        gap_ns = max(moment.t_ns - now_ns, 0)
        steps_ns = min(gap_ns, count * (moment.stated_ns if moment.stated_ns is not None else usual_ns))
        iterations += range(before + 1, moment.iteration + 1)
        times += _divide(steps_ns, count)
        rest_ns = gap_ns - steps_ns
        if index == 0:
            apart_ns[Spent.START] += rest_ns
        else:
            saved_ns = min(rest_ns, moment.saved_ns)
            apart_ns[Spent.SAVES] += saved_ns
            apart_ns[_place(moment)] += rest_ns - saved_ns
        now_ns, before = max(moment.t_ns, now_ns), moment.iteration
    apart_ns[Spent.END] += max(end_ns - now_ns, 0)
    return Life(
        name=name,
        start_ns=start_ns,
        end_ns=max(end_ns, now_ns),
        iteration=np.asarray(iterations, np.int64),
        step_ns=np.asarray(times, np.int64),
        is_skipped=np.zeros(len(iterations), np.bool_),
        other_ns=apart_ns,
        ranks=ranks,
    )


def _place(moment: LoggedMoment) -> Spent:
    if moment.has_evaluation:
        return Spent.VALIDATION
    return Spent.SAVES if moment.has_save and not moment.saved_ns else Spent.STALLS


def _first_span(moments: Sequence[LoggedMoment]) -> int:
    """How many iterations the first line stands for: as many as the lines behind it."""
    if len(moments) == 1:
        return 1
    return min(moments[1].iteration - moments[0].iteration, max(moments[0].iteration, 1))


def _usual_step_ns(moments: Sequence[LoggedMoment]) -> int:
    times = [
        (after.t_ns - before.t_ns) / (after.iteration - before.iteration)
        for before, after in pairwise(moments)
        if after.t_ns >= before.t_ns  # a clock that goes back says nothing
    ]
    return round(median(times)) if times else 0


def _divide(total_ns: int, count: int) -> list[int]:
    return [total_ns * (part + 1) // count - total_ns * part // count for part in range(count)]
