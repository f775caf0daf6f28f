"""Partials that stand beside traces, taken in their place; what they do not hold is measured.

A file of partials that cannot be taken costs nothing but a note: its trace is read. Where a trace is not at hand, as
its run was collected without it, its partials are all that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from functools import partial as bind
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.constants import MANY_RANKS
from perfscope.engine.execution import Execution, Mergers
from perfscope.engine.inputs import FETCH
from perfscope.engine.partials import LoadedPartials, load, paths_of
from perfscope.engine.reading import read_each
from perfscope.engine.registry import BUILT_IN, Analyzer
from perfscope.engine.tasks import MeasuredTrace, Task, events_of, measuring, task_for_some, wanted_events
from perfscope.engine.windows import TraceFiles
from perfscope.errors import SourceError
from perfscope.sources.partials.header import Identity, is_still
from perfscope.sources.partials.stored import Missing, Refused
from perfscope.sources.traces.metadata import read_metadata
from perfscope.sources.traces.reading_choices import RANK_IN_FILE_NAME
from perfscope.tables.trace import Events
from perfscope.units import format_count
from perfscope.wire.traces import TraceMetadata, file_name, partials_path

#: What the partials of a trace answer, and the analyzers for which they say nothing; or why they are not taken.
Taken: TypeAlias = "tuple[MeasuredTrace, tuple[str, ...]] | Refused"

#: Why the other windows are measured, which are at hand.
_STAYED = "their traces stayed on the hosts, without partials that can be taken"


class Taking(Struct):
    """How partials are taken, and what came of it.

    Attributes:
        is_fresh: Whether the traces are read instead, as far as they are at hand.
        absent: The traces that are not at hand.
        on_demand: Analyzers that no trace is read for alone.
        postponed: The traces whose partials are all there but for those of such analyzers.
        taken: How many traces were answered for by partials, in whole or in part.
        lacking: The absent traces for which an analyzer has nothing stored, by its name.
        refused: The files that were not taken, by the reason.
        opened: Files of partials that were read to learn of which windows they are, by their traces, which are the
            ones that were measured.
    """

    is_fresh: bool = False
    absent: Collection[str] = frozenset()
    on_demand: frozenset[str] = frozenset()
    postponed: list[TraceFiles] = field(default_factory=list)
    taken: int = 0
    lacking: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)
    opened: dict[str, LoadedPartials] = field(default_factory=dict)

    def read_metadata(self, path: str) -> TraceMetadata | None:
        """What the hooks wrote into a trace, as its partials say, where they can be taken, else as the trace says."""
        is_absent = path in self.absent
        # The partials of many ranks are read in processes of their own: here they would be read twice.
        if not is_absent and (self.is_fresh or len(self.opened) >= MANY_RANKS):
            return read_metadata(path)
        try:
            loaded = load(partials_path(path))
            _require_traces(TraceFiles(path), loaded.traces[:1], self.absent)
        except Refused:
            return None if is_absent else read_metadata(path)
        if not is_absent:
            self.opened[path] = loaded
        hooks = loaded.stored.header.hooks
        return read_metadata(path) if hooks is None and not is_absent else hooks

    def notes(self) -> list[str]:
        """What a reader should know of partials that were not taken, as sentences."""
        return [
            f"{paths[0]} {reason}: its trace is read"
            if len(paths) == 1
            else f"{paths[0]} and {len(paths) - 1} more: each {reason}: their traces are read"
            for reason, paths in sorted(self.refused.items())
        ]

    def why_lacking(self, analyzer: str) -> str | None:
        """Why an analyzer has no partials of some traces; None where it has those of all."""
        lacking = self.lacking.get(analyzer, ())
        if not lacking:
            return None
        return f"needs {format_count(len(lacking), 'trace')} that stayed on the hosts; {FETCH}"


class Answered(NamedTuple):
    """The answer for a trace, and the number of that trace among all."""

    number: int
    measured: MeasuredTrace


def answer_each(
    execution: Execution, files: Sequence[TraceFiles], task: Task, mergers: Mergers, taking: Taking
) -> Iterator[Answered]:
    """Answer for every trace, by its partials where they can be taken, else by measuring it; in any order.

    Raises:
        UsageError: The execution cannot start.
    """
    number_of: dict[str, int] = {}  # of those to measure alone: a text for every trace would fill the memory
    to_measure: dict[tuple[str, ...], list[TraceFiles]] = {}
    begun: dict[str, MeasuredTrace] = {}
    taken = zip(files, read_each(_taker(task, taking), files), strict=True)
    for number, (trace, answer) in enumerate(taken):
        is_absent = any(path in taking.absent for path in paths_of(trace))
        if isinstance(answer, Refused):
            if is_absent:
                line = f"{trace.path} stayed on its host, and {file_name(partials_path(trace.path))} {answer}"
                is_other_at_hand = trace.operators is not None and trace.operators not in taking.absent
                mismatch = _STAYED if is_other_at_hand else None
                yield Answered(number, MeasuredTrace(trace.path, None, (line,), mismatch=mismatch))
                continue
            if not isinstance(answer, Missing):
                taking.refused.setdefault(str(answer), []).append(partials_path(trace.path))
            to_measure.setdefault(task.analyzers, []).append(trace)
            number_of[trace.path] = number
            continue
        taking.taken += 1
        measured, lacking = answer
        if lacking and not is_absent and taking.on_demand.issuperset(lacking):
            taking.postponed.append(trace)
            yield Answered(number, measured)
            continue
        if lacking and not is_absent:
            begun[trace.path] = measured
            number_of[trace.path] = number
            to_measure.setdefault(lacking, []).append(trace)
            continue
        for name in lacking:
            taking.lacking.setdefault(name, []).append(trace.path)
        yield Answered(number, measured)
    for names, group in to_measure.items():
        for rest in execution.map(measuring(task_for_some(task, names)), group, mergers):
            yield Answered(number_of[rest.path], _joined(begun.get(rest.path), rest))


def _taker(task: Task, taking: Taking) -> Callable[[TraceFiles], Taken]:
    """What reads the partials of a trace, or says why they are not taken."""
    # A rule of the user's changes the rank of a trace that states none, which partials do not tell, or what kernels do.
    is_ruled = task.rank_rule != RANK_IN_FILE_NAME or bool(task.kernels)
    return bind(_take, task=task, taking=taking, wanted=wanted_events(task), is_ruled=is_ruled)


def _take(files: TraceFiles, task: Task, taking: Taking, wanted: tuple[Events, Events], *, is_ruled: bool) -> Taken:
    if files.path not in taking.absent and (taking.is_fresh or is_ruled):
        return Missing("")
    if task.kernels:
        return Refused("was measured without the patterns of kernels that are given")
    try:
        loaded = taking.opened.pop(files.path, None)
        is_checked = loaded is not None and paths_of(files) == (files.path,) and len(loaded.traces) == 1
        loaded = loaded or load(partials_path(files.path))
        if not is_checked:
            _require_traces(files, loaded.traces, taking.absent)
        return _answer(files, loaded, task, wanted)
    except Refused as refusal:
        return refusal


def _require_traces(files: TraceFiles, identities: Sequence[Identity], absent: Collection[str]) -> None:
    """Require that the traces are those that were measured.

    Raises:
        Refused: One is another one.
    """
    paths = paths_of(files)
    if len(paths) != len(identities):
        raise Refused("is of other windows")
    for path, identity in zip(paths, identities, strict=True):
        _require(identity, path, is_absent=path in absent)


def _require(identity: Identity, path: str, *, is_absent: bool) -> None:
    """Require that a trace is the one that was measured.

    Raises:
        Refused: It is another one, or cannot be read.
    """
    name = file_name(path)
    if is_absent:
        if identity.name.removesuffix(".gz") == name.removesuffix(".gz"):
            return
    else:
        try:
            if identity.name == name and is_still(identity, path):
                return
        except SourceError as error:  # the store failed, which says nothing of whose partials these are
            raise Refused(f"cannot be compared with its trace: {error.problem.removeprefix(path).strip()}") from None
        except OSError as error:
            raise Refused(f"cannot be compared with its trace: {error.strerror or error}") from None
    raise Refused("is of another trace")


def _answer(
    files: TraceFiles, loaded: LoadedPartials, task: Task, wanted: tuple[Events, Events]
) -> tuple[MeasuredTrace, tuple[str, ...]]:
    """What partials say of a trace, and the analyzers for which they say nothing.

    Raises:
        Refused: They are damaged.
    """
    measured = loaded.of_trace(files)
    events = events_of(measured, files, wanted)
    stored = {
        analyzer.name: loaded.partial_of(analyzer, files)
        for analyzer in _analyzers_of(task.analyzers)
        if loaded.serves(analyzer, events)
    }
    lacking = tuple(name for name in task.analyzers if name not in stored)
    partials = {name: partial for name, partial in stored.items() if partial is not None}
    return replace(measured, partials=partials), lacking


@cache
def _analyzers_of(names: tuple[str, ...]) -> tuple[Analyzer, ...]:
    """Our own analyzers of these names."""
    return tuple(analyzer for analyzer in BUILT_IN if analyzer.name in names)


def _joined(begun: MeasuredTrace | None, rest: MeasuredTrace) -> MeasuredTrace:
    if begun is None or rest.summary is None:
        return rest
    return replace(rest, partials=begun.partials | rest.partials)
