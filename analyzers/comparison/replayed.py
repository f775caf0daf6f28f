"""What the largest changes of kernels cost on the critical path: B's steps replayed with these kernels as on A.

The budget adds up moments of each rank. A kernel that only one rank runs longer counts there with its mean over ranks,
and the others' waits are another term. The replay gives the whole effect. Each rank's launches of the kernel take as
long as on the same rank of A, and everything else follows. These answers overlap; their sum has no meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.budget.terms import COMPUTE
from perfscope.analyzers.comparison.budgets import BudgetChange
from perfscope.analyzers.replay.measured import Measured, prepare
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.replay import span_of_steps
from perfscope.errors import MissingInput
from perfscope.tables.trace import ABSENT

_MOST_TERMS = 5
#: A smaller change of a kernel, as a share of A's step, is not replayed.
_SMALLEST_SHARE = 0.005
#: Of what a change saves: by so much predictions were from changes that were really made (reports/what-if.md).
_UNSEEN = 0.2


@dataclass(frozen=True, slots=True)
class ReplayedTerm:
    """A kernel whose time changed; nanoseconds of a step.

    Attributes:
        name: The kernel.
        change_ns: By how much its time changed in the mean over ranks, in the budget.
        replayed_ns: By how much B's step is longer for it, by the replay.
        interval_ns: Of that.
    """

    name: str
    change_ns: int
    replayed_ns: float
    interval_ns: tuple[float, float]


def replay_terms(
    budget: BudgetChange, a: Sequence[RankGraph], b: Sequence[RankGraph], undisturbed_ns: float | None
) -> tuple[ReplayedTerm, ...]:
    """Replay B with each of the kernels that changed most as they are on A.

    Args:
        budget: Of the change.
        a: The graphs of A's ranks.
        b: Those of B's.
        undisturbed_ns: The time of a step of B that nobody profiled, where it is known.

    Raises:
        MissingInput: The traces cannot be replayed, or they are of different ranks.
    """
    if len(a) != len(b):
        raise MissingInput(f"A has {len(a)} devices, and B {len(b)}: a rank of B has none of A beside it")
    measured = prepare(b, undisturbed_ns)
    before = [_kernel_times(graph) for graph in _in_order(a)]
    after = [_kernel_times(graph) for graph in _in_order(measured.job.ranks)]
    changes: dict[str, int] = {}
    for term in budget.terms:
        if term.term.kind == COMPUTE and term.term.name:
            changes[term.term.name] = changes.get(term.term.name, 0) + term.change_ns
    largest = sorted(changes, key=lambda name: -abs(changes[name]))[:_MOST_TERMS]
    return tuple(
        _replay(measured, name, changes[name], before, after)
        for name in largest
        if abs(changes[name]) >= _SMALLEST_SHARE * budget.step_ns and any(times.get(name) for times in after)
    )


def _in_order(graphs: Sequence[RankGraph]) -> list[RankGraph]:
    return sorted(graphs, key=lambda graph: ABSENT if graph.rank is None else graph.rank)


def _kernel_times(graph: RankGraph) -> dict[str, float]:
    """The time of each kernel in a mean marked step of a rank."""
    is_marked = graph.step != ABSENT
    sums = np.bincount(
        graph.name[is_marked], (graph.end_ns - graph.start_ns)[is_marked].astype(np.float64), len(graph.names)
    )
    steps = max(len(graph.marks), 1)
    return {name: float(total) / steps for name, total in zip(graph.names, sums, strict=True) if total}


def _replay(
    measured: Measured,
    name: str,
    change_ns: int,
    before: Sequence[Mapping[str, float]],
    after: Sequence[Mapping[str, float]],
) -> ReplayedTerm:
    places = {id(graph): place for place, graph in enumerate(_in_order(measured.job.ranks))}
    ranks = []
    for graph, times in zip(measured.job.ranks, measured.times.ranks, strict=True):
        place = places[id(graph)]
        factor = before[place].get(name, 0.0) / after[place][name] if after[place].get(name) else 1.0
        rows = np.array([each == name for each in graph.names], np.bool_)[graph.name]
        ranks.append(replace(times, event_ns=np.where(rows, np.rint(times.event_ns * factor), times.event_ns)))
    ranks = [replace(times, event_ns=times.event_ns.astype(np.int64)) for times in ranks]
    changed = measured.replay.run(measured.times.with_ranks(ranks))
    longer_ns = measured.replayed.step_ns - span_of_steps(measured.job, changed.end_ns).step_ns
    # What the replay is off of the measured step whatever is changed is off of both steps: it counts in proportion.
    largest_ns = max(abs(longer_ns), abs(change_ns))
    doubt_ns = hypot(measured.error * largest_ns, _UNSEEN * longer_ns, measured.steps.standard_error_ns)
    return ReplayedTerm(name, change_ns, longer_ns, (longer_ns - doubt_ns, longer_ns + doubt_ns))
