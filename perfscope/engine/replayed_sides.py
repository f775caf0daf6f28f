"""Comparisons with what their largest terms cost on the critical path, for which the traces are read once more."""

from __future__ import annotations

from dataclasses import replace

from perfscope.analyzers.comparison.comparison import Comparison
from perfscope.analyzers.comparison.replayed import replay_terms
from perfscope.constants import NS_PER_S
from perfscope.engine.run import Plan, measure_with
from perfscope.errors import PerfscopeError


def with_replays(comparison: Comparison, plan: Plan) -> Comparison:
    """The comparison with its replays, or with a note that says why there are none."""
    a, b = comparison.a, comparison.b
    several = [side.name for side in (a, b) if side.step_time_s is not None and len(side.step_time_s.runs) > 1]
    if comparison.budget is None or comparison.is_per_work or several:
        why = "it needs the traces of one run of each side, for the same work"
        return replace(comparison, replays=(), notes=(*comparison.notes, f"Nothing is replayed: {why}."))
    undisturbed_ns = b.step_time_s.centre * NS_PER_S if b.step_time_s is not None and not b.is_profiled else None
    try:
        graphs = [
            [graph for partial in measure_with("whatif", tuple, [side.name], plan).partials for graph in partial]
            for side in (a, b)
        ]
        replays = replay_terms(comparison.budget, graphs[0], graphs[1], undisturbed_ns)
    except PerfscopeError as problem:
        return replace(
            comparison, replays=(), notes=(*comparison.notes, f"Nothing is replayed: {problem.problem}.")
        )  # fmt: skip
    return replace(comparison, replays=replays)
