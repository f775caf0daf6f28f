"""The analyzers: an explicit list of our own, and the entry-point group ``perfscope.analyzers`` for other packages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, get_type_hints

from msgspec import Struct

from perfscope.errors import MissingInput
from perfscope.result import Result
from perfscope.tables.trace import BASIC_EVENTS, NO_EVENTS, Events, Trace

if TYPE_CHECKING:
    from perfscope.tables.run import Run

ENTRY_POINTS = "perfscope.analyzers"

#: What an analyzer keeps of one trace: any value that can be pickled. Only the analyzer's own module looks into it.
Partial: TypeAlias = object


class Reads(Enum):
    """The inputs of an analyzer."""

    RUN = "run"
    TRACES = "traces"
    RUN_AND_TRACES = "run and traces"


class Analyzer(Struct, frozen=True):
    """One analyzer: its name and its module, which is imported when it is needed.

    A result may have more: ``damage`` of its inputs in sentences, ``in_a_sentence()``, ``with_depth(levels)`` of its
    tables, and ``with_ceiling(ceiling)``. ``groups_of_ranks()`` says what a group is called, and that of each rank.
    ``largest_distortion(activities)`` says by how much windows slowed their steps.

    Attributes:
        name: Its key in ``results``.
        module: The module's full name. Which functions it has depends on ``reads``:

            - RUN: ``analyze(run: Run) -> Result``.
            - TRACES: ``measure(trace: Trace) -> Partial | None``, called where the trace is read, and
              ``analyze(partials: Sequence[Partial]) -> Result``, called once.
            - RUN_AND_TRACES: ``measure`` and ``analyze(run: Run, partials: Sequence[Partial]) -> Result``; there may be
              no partials.

            ``analyze`` raises MissingInput to be listed as skipped. A module may have ``merge(Partial, Partial) ->
            Partial``; then the driver merges the partials in any order, and keeps only the merged one.
        needs: The events that it needs of a trace; other tables may be empty.
        needs_without_device: The events that it needs besides, of a trace without device events.
        partials_of: The analyzer whose partials it reduces, where its module has no ``measure``.
        is_default: Whether it runs where no analyzer is named.
        recorded_by: The option of `perfscope profile` with which a run records what it needs: there it runs, too.
        kind_module: A module with the type of its partials, where that of ``measure`` does not import it.
        varies_with: Kinds of events that change its partial where they are read, besides those that it needs.
        is_stored: Whether its partials are small enough to be stored beside the trace.
    """

    name: str
    module: str
    reads: Reads
    needs: Events = BASIC_EVENTS
    needs_without_device: Events = NO_EVENTS
    partials_of: str | None = None
    is_default: bool = True
    recorded_by: str | None = None
    kind_module: str = ""
    varies_with: Events = NO_EVENTS
    is_stored: bool = True

    @property
    def measured_by(self) -> str:
        """The analyzer whose ``measure`` makes its partials."""
        return self.partials_of or self.name

    def measure(self, trace: Trace) -> Partial | None:
        """Measure one trace; None where the trace contains nothing of interest."""
        partial: Partial | None = self._load().measure(trace)
        return partial

    def partial_kind(self) -> object:
        """The type of its partials, or None: what its ``measure`` is annotated to return."""
        return _kind_of(self.module, self.kind_module)

    def merger(self) -> Callable[[Partial, Partial], Partial] | None:
        """The function that merges two partials, where the module has one."""
        return getattr(self._load(), "merge", None)

    def analyze(self, run: Run | None, partials: Sequence[Partial]) -> Result:
        """Reduce the partials, or analyze the run; MissingInput where it needs a run, or something else."""
        result: Result
        if self.reads is Reads.TRACES:
            result = self._load().analyze(partials)
        elif run is None:
            raise MissingInput("needs a run of `perfscope profile`, not traces alone")
        elif self.reads is Reads.RUN_AND_TRACES:
            result = self._load().analyze(run, partials)
        else:
            result = self._load().analyze(run)
        return result

    def _load(self) -> ModuleType:
        return import_module(self.module)


#: What stands first in every report: ``derive`` of this module takes all other results, and a function that gives the
#: graphs of the traces. Traces whose partials stand in for them are read only where it is called.
FINDINGS, FINDINGS_MODULE = "findings", "perfscope.analyzers.findings"
#: The analyzer that measures these graphs, also where it is not chosen.
REPLAY = "whatif"

_WITH_TIMES = BASIC_EVENTS | Events.OPERATOR_TIMES
_WITH_SHAPES = BASIC_EVENTS | Events.OPERATORS | Events.SHAPES


def _own(name: str, reads: Reads, module: str = "", **how: Any) -> Analyzer:  # noqa: ANN401 - attributes of Analyzer
    """An analyzer of ours, in the module of its name unless another one is named."""
    return Analyzer(name, f"perfscope.analyzers.{module or name}", reads, **how)


BUILT_IN: tuple[Analyzer, ...] = (
    _own("wall_clock", Reads.RUN),
    _own("loop", Reads.RUN),
    _own("steps", Reads.RUN),
    _own("late_ranks", Reads.RUN, module="stragglers.records"),
    _own("setup", Reads.RUN),
    _own("gpus", Reads.RUN),
    _own("cost", Reads.RUN),
    _own("saves", Reads.RUN),
    _own("goodput", Reads.RUN, is_default=False),
    _own("memory", Reads.RUN),
    _own("energy", Reads.RUN),
    _own("throttling", Reads.RUN),
    _own("mfu", Reads.RUN_AND_TRACES, partials_of="operations"),
    _own("breakdown", Reads.TRACES),
    _own("host", Reads.TRACES, needs_without_device=Events.OPERATORS | Events.FRAMES),
    _own("overlap", Reads.TRACES),
    _own("idle", Reads.TRACES, needs=_WITH_TIMES),
    _own("calls", Reads.TRACES, needs=BASIC_EVENTS | Events.CALLERS),
    _own("optimizer", Reads.TRACES),
    _own("kernels", Reads.TRACES, varies_with=Events.OPERATORS),
    _own("operations", Reads.TRACES, needs=BASIC_EVENTS | Events.PRODUCTS),
    _own("collectives", Reads.TRACES, needs=_WITH_TIMES),
    _own("stragglers", Reads.TRACES, module="stragglers.traces", partials_of="collectives"),
    _own("clock", Reads.TRACES, partials_of="collectives"),
    _own("pipeline_bubble", Reads.TRACES, kind_module="perfscope.analyzers.pipeline_bubble.rank_passes"),
    _own("pipeline_steps", Reads.RUN),
    _own("modules", Reads.TRACES, needs=_WITH_SHAPES | Events.SEQUENCES, is_default=False, recorded_by="modules"),
    _own("roofline", Reads.TRACES, needs=_WITH_SHAPES, is_default=False, recorded_by="shapes"),
    _own("whatif", Reads.TRACES, is_default=False, is_stored=False),
    _own(
        "timeline",
        Reads.TRACES,
        needs=_WITH_TIMES,
        needs_without_device=Events.OPERATORS,
        is_default=False,
        is_stored=False,
    ),
    _own("stacks", Reads.TRACES, needs=BASIC_EVENTS | Events.FRAMES, is_default=False),
    _own("budget", Reads.TRACES, needs=_WITH_TIMES, varies_with=Events.OPERATORS, is_default=False),
)


@cache
def _kind_of(module: str, kind_module: str) -> object:
    """What ``measure`` of a module is annotated to return; to resolve it takes longer than to read a partial."""
    names = vars(import_module(kind_module)) if kind_module else {}
    kind: object = get_type_hints(import_module(module).measure, localns=names)["return"]
    return kind


@cache
def analyzers() -> Sequence[Analyzer]:
    """Our own analyzers, then those of installed distributions.

    An entry point names an Analyzer object: ``name = "package.module:ANALYZER"``.
    """
    if not _has_others():
        return BUILT_IN
    from importlib.metadata import entry_points  # takes as long to import as all analyzers

    return BUILT_IN + tuple(entry.load() for entry in entry_points(group=ENTRY_POINTS))


def _has_others() -> bool:
    """Whether an installed distribution's list of entry points has our group."""
    for location in sys.path:
        with suppress(OSError):
            files = Path(location).glob("*-info/entry_points.txt")
            if any(ENTRY_POINTS.encode() in file.read_bytes() for file in files):
                return True
    return False
