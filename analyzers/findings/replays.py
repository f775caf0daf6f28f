"""What a fix regains by the replay, which is imported only where a finding asks: most runs need it for none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from perfscope.analyzers.replay.regain import Regain


class Fixes(Protocol):
    """Answers what a fix regains."""

    def regain(self, fix: str) -> Regain:
        """What a step takes less with this scenario of ``perfscope whatif``."""
        ...


class Replays:
    """The profiled steps of a run, replayed with one change at a time.

    Args:
        graphs: What ``perfscope.analyzers.replay.graphs.measure`` gives for the trace of each rank.
        undisturbed_ns: The time of a step that nobody profiled; None where it is not known.
    """

    def __init__(self, graphs: Sequence[object], undisturbed_ns: float | None) -> None:
        self._graphs = graphs
        self._undisturbed_ns = undisturbed_ns

    @cached_property
    def _fixes(self) -> Fixes:
        module = import_module("perfscope.analyzers.replay.regain")
        fixes: Fixes = module.Fixes(self._graphs, self._undisturbed_ns)
        return fixes

    def regain(self, fix: str) -> Regain:
        """What a fix regains."""
        return self._fixes.regain(fix)
