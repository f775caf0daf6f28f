"""The analyzers: an explicit list of our own, and the entry-point group ``perfscope.analyzers`` for others'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol

from perfscope.report import Json, Section
from perfscope.tables.trace import BASIC_EVENTS, NO_EVENTS, Events

ENTRY_POINTS = "perfscope.analyzers"


class Result(Protocol):
    """What an analyzer returns: a frozen value that can say itself as data and to people."""

    def data(self) -> Json:
        """The value of ``results.<name>`` in JSON."""
        ...

    def sections(self) -> tuple[Section, ...]:
        """What people read."""
        ...


class Reads(Enum):
    """What an analyzer is given."""

    RUN = "run"
    TRACES = "traces"
    RUN_AND_TRACES = "run and traces"


@dataclass(frozen=True, slots=True)
class Analyzer:
    """One analyzer.

    Attributes:
        name: Its key in ``results``.
        module: Where it is. A module that reads a run has ``analyze(run: Run) -> Result``. One that reads traces has
            ``measure(trace: Trace) -> partial``, called where the trace is read, and
            ``analyze(partials: Sequence) -> Result``, called once. One that reads a run and its traces has
            ``analyze(run: Run, partials: Sequence) -> Result``; there may be no partials. Each raises MissingInput to
            be listed as skipped.
            Where it has ``merge(partial, partial) -> partial``, in any order, the driver keeps one partial.
        reads: Which of the two.
        needs: The events it wants of a trace; others may be missing from the tables.
        needs_without_device: What it wants besides, of a trace without device events.
        partials_of: The analyzer whose partials it reduces, where it does not measure traces itself.
    """

    name: str
    module: str
    reads: Reads
    needs: Events = BASIC_EVENTS
    needs_without_device: Events = NO_EVENTS
    partials_of: str | None = None

    def load(self) -> Any:  # noqa: ANN401 - a module
        """Import it."""
        return import_module(self.module)

    def merger(self) -> Callable[[Any, Any], Any] | None:
        """What makes one of two partials, where the module has it."""
        return getattr(self.load(), "merge", None)


@dataclass(frozen=True, slots=True)
class Derivation:
    """A result that follows from the results of analyzers, where all of them are there and it applies.

    Attributes:
        name: Its key in ``results``.
        module: Where it is. The module has ``derive``, which takes the results of ``needs_results`` in their order, and
            returns a Result, or None where it does not apply.
        needs_results: Names of the analyzers.
    """

    name: str
    module: str
    needs_results: tuple[str, ...]

    def derive(self, results: Mapping[str, Result]) -> Result | None:
        """The result; None where a result that it needs is missing, or where it does not apply."""
        if not all(name in results for name in self.needs_results):
            return None
        derived: Result | None = import_module(self.module).derive(*(results[name] for name in self.needs_results))
        return derived


BUILT_IN: tuple[Analyzer, ...] = (
    Analyzer("steps", "perfscope.analyzers.steps", Reads.RUN),
    Analyzer("gpus", "perfscope.analyzers.gpus", Reads.RUN),
    Analyzer("cost", "perfscope.analyzers.cost", Reads.RUN),
    Analyzer("saves", "perfscope.analyzers.saves", Reads.RUN),
    Analyzer("energy", "perfscope.analyzers.energy", Reads.RUN),
    Analyzer("throttling", "perfscope.analyzers.throttling", Reads.RUN),
    Analyzer("mfu", "perfscope.analyzers.mfu", Reads.RUN_AND_TRACES, partials_of="operations"),
    Analyzer("breakdown", "perfscope.analyzers.breakdown", Reads.TRACES),
    Analyzer("host", "perfscope.analyzers.host", Reads.TRACES, needs_without_device=Events.OPERATORS),
    Analyzer("overlap", "perfscope.analyzers.overlap", Reads.TRACES),
    Analyzer("idle", "perfscope.analyzers.idle", Reads.TRACES),
    Analyzer("kernels", "perfscope.analyzers.kernels", Reads.TRACES),
    Analyzer("operations", "perfscope.analyzers.operations", Reads.TRACES, needs=BASIC_EVENTS | Events.PRODUCTS),
    Analyzer("collectives", "perfscope.analyzers.collectives", Reads.TRACES),
    Analyzer("stragglers", "perfscope.analyzers.stragglers", Reads.TRACES, partials_of="collectives"),
    Analyzer("clock", "perfscope.analyzers.clock", Reads.TRACES, partials_of="collectives"),
    Analyzer("pipeline_bubble", "perfscope.analyzers.pipeline_bubble", Reads.TRACES),
    Analyzer("pipeline_steps", "perfscope.analyzers.pipeline_steps", Reads.RUN),
)

DERIVATIONS: tuple[Derivation, ...] = (
    Derivation("corrected", "perfscope.analyzers.cost.corrected", needs_results=("cost", "steps", "breakdown")),
)


@cache
def analyzers() -> Sequence[Analyzer]:
    """Our own analyzers, then those of installed distributions.

    An entry point names an Analyzer object: ``mine = "my_package.scope:ANALYZER"``.
    """
    others = tuple(entry.load() for entry in entry_points(group=ENTRY_POINTS))
    return BUILT_IN + others
