"""Analyzer: the time of every module of the model, forward, backward, recomputed, in the optimizer, and exchanged."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.modules.measurement import RankModules, measure_modules
from perfscope.analyzers.modules.result import ModuleTree
from perfscope.errors import NotApplicable
from perfscope.tables.trace import Trace

_NO_MARKS = "the traces mark no modules on a GPU: profile with `--modules`"


def measure(trace: Trace) -> RankModules | None:
    """The modules of one trace; None where it marks none, or has no device events."""
    return measure_modules(trace)


def analyze(partials: Sequence[RankModules]) -> ModuleTree:
    """Put the ranks in order.

    Raises:
        NotApplicable: No trace marks modules.
    """
    if not partials:
        raise NotApplicable(_NO_MARKS)
    return ModuleTree(tuple(sorted(partials, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.path))))
