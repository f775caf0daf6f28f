"""Writes one trace of all ranks: each rank's events on the common clock, and above them the tracks of all ranks.

Each trace is moved by a worker into a piece of its own, a member of a gzip file; the pieces one behind the other are
the merged file. It appears when it is whole.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from isal import igzip

from perfscope.analyzers.findings import Findings
from perfscope.analyzers.findings.finding import Finding
from perfscope.analyzers.tracks.job_tracks import JobTracks, join_tracks
from perfscope.analyzers.tracks.rank_tracks import RankTracks, measure_tracks
from perfscope.constants import MIB
from perfscope.engine.execution import Execution
from perfscope.engine.inputs import Inputs
from perfscope.engine.registry import FINDINGS
from perfscope.engine.run import Plan, analyze
from perfscope.errors import MissingInput, NotATrace, SourceError
from perfscope.merging.counters import draw_counters
from perfscope.merging.events import to_text
from perfscope.merging.moving import Move, MovedTrace
from perfscope.merging.overview import draw_overview
from perfscope.merging.slots import assign_slots
from perfscope.sources.traces.reader import read_trace
from perfscope.sources.traces.reading_choices import RankRule
from perfscope.tables.trace import BASIC_EVENTS, Events
from perfscope.wire import TRACE_METADATA
from perfscope.wire.traces import MERGED_MARK
from perfscope.workers import start_workers

_A = TypeVar("_A")
_B = TypeVar("_B")
_LEVEL = 1  # of igzip: a tenth larger than 3, and three times as fast
_HEAD = b'{"schemaVersion":1,"displayTimeUnit":"ms","%b":{%b},"traceEvents":[\n' % (
    TRACE_METADATA.encode(),
    MERGED_MARK,
)
_NEEDS = BASIC_EVENTS | Events.OPERATOR_TIMES


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a job is merged; all of it where a field is empty.

    Attributes:
        ranks: These ranks.
        steps: From the beginning of these steps to their end.
        rank_rule: How the rank of a trace that does not state it is found.
        workers: How many traces are moved at once.
    """

    ranks: frozenset[int]
    steps: tuple[int, ...]
    rank_rule: RankRule
    workers: int


@dataclass(frozen=True, slots=True)
class MergedTrace:
    """One trace in the merged file."""

    path: str
    rank: int | None
    offset_ns: int
    residual_ns: int | None
    events: int


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged file.

    Attributes:
        path: Where it is.
        bytes: Its size.
        traces: What it was made of, in the order of ranks.
        reference: The rank whose clock is the common one; absent where the hosts' clocks are taken as they are.
        operations: How many operations of several ranks it shows.
        notes: What a reader must know, as sentences.
        damage: What could not be read, as sentences.
    """

    path: Path
    bytes: int
    traces: tuple[MergedTrace, ...]
    reference: int | None
    operations: int
    notes: tuple[str, ...]
    damage: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A moved trace."""

    path: Path
    events: int
    damage: tuple[str, ...]


def merge(inputs: Inputs, target: Path, choice: Choice) -> Merged:
    """Write the merged file.

    Raises:
        MissingInput: Nothing is left of what was chosen.
        SourceError: No trace can be read, or the file cannot be written.
    """
    typed = frozenset(inputs.locations)
    measured = _map(partial(_measure, typed=typed, rank_rule=choice.rank_rule), inputs.at_hand(), choice.workers)
    damage = [*inputs.stayed_on_hosts(), *(sentence for _, sentences in measured for sentence in sentences)]
    every = [rank for ranks, _ in measured for rank in ranks]
    if not every:
        raise SourceError(inputs.locations[0], "contains no trace that can be read", hint=damage[0] if damage else None)
    # Ranks that are not shown help to align those that are.
    job = join_tracks(every)
    tracks = _select(job, choice.ranks)
    within = tracks.window_of(choice.steps) if choice.steps else None
    if not tracks.ranks or (choice.steps and within is None):
        raise MissingInput(_explain_emptiness(job))
    with _staging(target) as folder:
        pieces = _move(tracks, inputs, within, folder, choice.workers)
        _assemble(target, folder, [piece for piece in pieces if piece.events])
    return _describe(target, tracks, pieces, [*damage, *inputs.missing_traces()])


def _measure(trace: str, typed: frozenset[str], rank_rule: RankRule) -> tuple[tuple[RankTracks, ...], tuple[str, ...]]:
    try:
        table = read_trace(trace, _NEEDS, rank_rule)
    except SourceError as error:
        # A folder may hold other files, too.
        return (), () if isinstance(error, NotATrace) and trace not in typed else (error.problem,)
    return measure_tracks(table), table.damage


def _select(job: JobTracks, ranks: frozenset[int]) -> JobTracks:
    """The job without the other ranks."""
    if not ranks:
        return job
    return JobTracks(
        ranks=tuple(rank for rank in job.ranks if rank.rank in ranks),
        clocks=job.clocks,
        reference=job.reference,
        operations=tuple(operation.among(ranks) for operation in job.operations if ranks & set(operation.ranks)),
        bubbles=tuple(bubble for bubble in job.bubbles if bubble.rank in ranks),
        notes=job.notes,
    )


def _explain_emptiness(job: JobTracks) -> str:
    ranks = sorted({rank.rank for rank in job.ranks if rank.rank is not None})
    steps = sorted({step.number for rank in job.ranks for step in rank.steps})
    return (
        f"nothing of what was chosen is in the traces: they hold ranks {', '.join(map(str, ranks)) or 'unknown'}, "
        f"steps {', '.join(map(str, steps)) or 'unknown'}"
    )


def _find_causes(inputs: Inputs, workers: int) -> tuple[Finding, ...]:
    """What costs the most in all of the job, as `perfscope analyze` says it."""
    results = analyze(inputs.locations, Plan(Execution(workers))).results
    findings = results.get(FINDINGS)
    return findings.findings if isinstance(findings, Findings) else ()


def _move(
    tracks: JobTracks, inputs: Inputs, within: tuple[int, int] | None, folder: Path, workers: int
) -> list[_Piece]:
    """Write each trace as a piece, and the tracks of all ranks as the first one."""
    findings = _find_causes(inputs, workers)
    slots = assign_slots(tracks.ranks, inputs.run)
    base_ns = {rank.trace: rank.base_ns - tracks.clock_of(rank.rank).offset_ns for rank in tracks.ranks}
    whole = within or tracks.window()
    origin_ns = whole[0]
    overview = list(draw_overview(tracks, findings, slots, origin_ns, within))
    if inputs.run is not None:
        overview += draw_counters(inputs.run, tracks, slots, origin_ns, whole)
    first = folder / "0"
    with _open(first) as file:
        file.write(to_text(overview))
    moves = [
        Move(
            trace=trace,
            index=index,
            slot=slots[trace],
            shift_ns=base_ns[trace] - origin_ns,
            first_ns=None if within is None else 0,
            last_ns=None if within is None else within[1] - origin_ns,
            devices=tuple(rank.device for rank in tracks.ranks if rank.trace == trace and rank.device is not None),
        )
        for index, trace in enumerate(base_ns)
    ]
    moved = _map(_write_piece, [(move, folder) for move in moves], workers)
    return [_Piece(first, len(overview), ()), *moved]


def _write_piece(job: tuple[Move, Path]) -> _Piece:
    move, folder = job
    path = folder / str(move.index + 1)
    moved, damage = MovedTrace(move), []
    with _open(path) as file:
        separator = b""
        try:
            for events in moved.read():
                if events:
                    file.write(separator + to_text(events))
                    separator = b",\n"
        except SourceError as error:
            damage.append(error.problem)
    if moved.without_time:
        damage.append(f"{move.trace}: {moved.without_time} events state no time and are left out")
    return _Piece(path, moved.events, tuple(damage))


def _assemble(target: Path, folder: Path, pieces: Sequence[_Piece]) -> None:
    """Put the pieces behind each other, below the metadata of the merged file."""
    texts = {"begin": _HEAD, "between": b",\n", "end": b"\n]}\n"}
    for name, text in texts.items():
        with _open(folder / name) as file:
            file.write(text)
    whole = folder / "whole"
    is_compressed = target.suffix == ".gz"
    with whole.open("wb") as file:
        for path in _order(folder, pieces):
            with path.open("rb") if is_compressed else cast("BinaryIO", igzip.open(path, "rb")) as part:
                shutil.copyfileobj(part, file, MIB)
    whole.replace(target)


def _order(folder: Path, pieces: Sequence[_Piece]) -> Iterator[Path]:
    for index, piece in enumerate(pieces):
        yield folder / ("between" if index else "begin")
        yield piece.path
    yield folder / "end"


def _open(path: Path) -> BinaryIO:
    return cast("BinaryIO", igzip.open(path, "wb", compresslevel=_LEVEL))


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A folder beside the file, for its pieces.

    Raises:
        SourceError: It cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            yield Path(folder)
    except OSError as error:
        raise SourceError(target, f"cannot be written: {error.strerror or error}") from None


def _map(function: Callable[[_A], _B], items: Iterable[_A], workers: int) -> list[_B]:
    """Apply a function to all items, in worker processes where there is more than one of both."""
    jobs = list(items)
    if min(workers, len(jobs)) <= 1:
        return [function(job) for job in jobs]
    with start_workers(min(workers, len(jobs))) as pool:
        return list(pool.map(function, jobs))


def _describe(target: Path, tracks: JobTracks, pieces: Sequence[_Piece], damage: Sequence[str]) -> Merged:
    events = {piece.path.name: piece.events for piece in pieces}
    traces: dict[str, MergedTrace] = {}
    for rank in tracks.ranks:
        clock = tracks.clock_of(rank.rank)
        count = events[str(len(traces) + 1)] if rank.trace not in traces else traces[rank.trace].events
        traces[rank.trace] = MergedTrace(rank.trace, rank.rank, clock.offset_ns, clock.residual_ns, count)
    sentences = [*damage, *(sentence for piece in pieces for sentence in piece.damage)]
    return Merged(
        path=target,
        bytes=target.stat().st_size,
        traces=tuple(traces.values()),
        reference=tracks.reference,
        operations=len(tracks.operations),
        notes=tracks.notes,
        damage=tuple(dict.fromkeys(sentences)),
    )
