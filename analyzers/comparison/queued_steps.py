"""Steps that are no steps of the device: their host ran ahead of it, and only filled its queue.

A host that does not wait for its device launches the first steps as fast as it can, until the queue is full; so it does
behind a window, which empties the queue. Their times say how fast the host launches. The device does not compute a step
in less time than its kernels take in the profiled ones: where a fifth of the steps or more are shorter, these are left
out.
"""

from __future__ import annotations

from dataclasses import replace

from perfscope.analyzers.budget.terms import COMPUTE, COPY
from perfscope.analyzers.comparison.change import Samples
from perfscope.analyzers.comparison.side import Side
from perfscope.constants import MS_PER_S, NS_PER_S

#: Windows slow kernels by a few percent at most; a step that is shorter by more than this was not computed in its time.
_FASTER = 0.9
#: Fewer of them hardly move a median, which then is the one that every other report states.
_MANY = 0.2
#: A side that keeps fewer of its steps is one whose host always ran ahead: its times are compared as they are.
_LEAST_LEFT = 1 / 3


def without_queued_steps(side: Side) -> Side:
    """The side without steps in which its device cannot have computed what it does in a step."""
    budget, samples = side.budget, side.step_time_s
    if budget is None or budget.is_of_host or samples is None or side.is_profiled:
        return side
    shortest_s = _FASTER * (budget.total(COMPUTE) + budget.total(COPY)) / NS_PER_S
    runs = tuple(run[run >= shortest_s] for run in samples.runs)
    queued, count = samples.count - sum(map(len, runs)), samples.count
    if queued < _MANY * count or any(
        len(left) < _LEAST_LEFT * len(run) for left, run in zip(runs, samples.runs, strict=True)
    ):
        return side
    note = (
        f"{side.name}: {queued} of {count} steps are left out: their host ran ahead, and they are shorter than what "
        f"the device computes in a step ({MS_PER_S * shortest_s / _FASTER:.3f} ms)."
    )
    return replace(side, step_time_s=Samples(runs, samples.is_mean), notes=(*side.notes, note))
