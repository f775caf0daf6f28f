"""What a fix regains by the replay, which is imported only where a finding asks: most runs need it for none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from perfscope.analyzers.replay.scenarios import Regain


class Fixes(Protocol):
    """Answers what a fix regains."""

    def regain(self, fix: str) -> Regain | None:
        """What a step takes less with this scenario of ``perfscope whatif``; None without traces."""
        ...


class Replays:
    """The profiled steps of a run, replayed with one change at a time.

    Args:
        graphs: Gives what ``perfscope.analyzers.replay.rank_graph.measure`` gives for the trace of each rank.
        undisturbed_ns: The time of a step that nobody profiled; None where it is not known.
    """

    def __init__(self, graphs: Callable[[], Sequence[object]], undisturbed_ns: float | None) -> None:
        self._graphs = graphs
        self._undisturbed_ns = undisturbed_ns

    @cached_property
    def _fixes(self) -> Fixes | None:
        graphs = self._graphs()
        if not graphs:
            return None
        module = import_module("perfscope.analyzers.replay.scenarios")
        fixes: Fixes = module.Fixes(graphs, self._undisturbed_ns)
        return fixes

    def regain(self, fix: str) -> Regain | None:
        """What a fix regains; None without graphs."""
        return None if self._fixes is None else self._fixes.regain(fix)
