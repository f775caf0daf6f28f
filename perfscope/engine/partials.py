"""The cache of partials: ``put`` stores what ``measure`` gave for a trace beside it, ``get`` takes it in its place.

A file is used only if this code wrote it and its traces are the same, by the checksums at their ends. The kinds of
events that change a partial must be the same, too. An answer is therefore the same with the cache and without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from perfscope import __version__
from perfscope.constants import MOST_RANKS
from perfscope.engine.registry import BUILT_IN, Reads
from perfscope.engine.tasks import MeasuredTrace, MeasureTask, events_of, wanted_events
from perfscope.engine.windows import TraceFiles
from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.sources.partials import (
    Identity,
    Refused,
    Stored,
    Unstorable,
    identify,
    pack_value,
    read_partials,
    to_bytes,
    unpack_value,
)
from perfscope.sources.traces.metadata import read_metadata
from perfscope.tables.trace import Events
from perfscope.wire.traces import TraceMetadata, file_name, partials_path

#: What stands for the traces' paths: in values, where no path holds a zero, and in sentences.
_PLACES = tuple(msgspec.msgpack.encode(f"\0trace {number}\0") for number in range(2))
_IN_SENTENCES = "\0trace\0"
_PACKAGE = Path(__file__).resolve().parents[1]
#: What partials depend on.
_CODE = ("analyzers/**/*.py", "engine/*.py", "models/*.toml", "sources/**/*.py", "tables/*.py")


def storable(recorded: Collection[str]) -> frozenset[str]:
    """The analyzers whose partials are stored: those of any analysis of a run that recorded some options."""
    return frozenset(
        analyzer.name
        for analyzer in BUILT_IN
        if analyzer.reads is not Reads.RUN
        and analyzer.partials_of is None
        and analyzer.is_stored
        and (analyzer.is_default or analyzer.recorded_by is None or analyzer.recorded_by in recorded)
    )


def identities(files: TraceFiles) -> tuple[Identity, ...] | None:
    """The content of a trace, or of both windows; None where it cannot be read, or is not compressed."""
    try:
        found = [identify(path) for path in paths_of(files)]
    except (OSError, SourceError):
        return None
    traces = tuple(identity for identity in found if identity is not None)
    return traces if len(traces) == len(found) else None


def put(files: TraceFiles, measured: MeasuredTrace, task: MeasureTask, traces: tuple[Identity, ...]) -> bool:
    """Store what was measured of a trace beside it; False where there is nothing to store, or it cannot be stored.

    ``traces`` is what ``identities`` gave before the trace was read: one that changed meanwhile is another one.
    """
    try:
        hooks = read_metadata(files.path) or TraceMetadata()
        events = events_of(measured, files, wanted_events(task))
        content = to_content(measured, files, task.analyzers, events, traces, hooks)
        replace_file(Path(partials_path(files.path)), content)
    except (OSError, SourceError, Unstorable):
        return False
    return True


def to_content(
    measured: MeasuredTrace,
    files: TraceFiles,
    names: Collection[str],
    events: Events,
    traces: tuple[Identity, ...],
    hooks: TraceMetadata | None = None,
) -> bytes:
    """What was measured of a trace by some analyzers, as the content of a file.

    Raises Unstorable: it could not be read, an analyzer failed, or the file would be too large.
    """
    if measured.summary is None or measured.mismatch is not None or measured.failed:
        raise Unstorable("the trace could not be measured")
    damage = tuple(line.replace(files.path, _IN_SENTENCES) for line in measured.damage)
    of_trace = _pack(replace(measured, partials={}, damage=damage), MeasuredTrace, files)
    partials: dict[str, Raw] = {}
    for analyzer in BUILT_IN:
        if analyzer.is_stored and analyzer.name in names:
            with suppress(Unstorable):
                partials[analyzer.name] = _pack(measured.partials.get(analyzer.name), analyzer.partial_kind(), files)
    while True:
        try:
            return to_bytes(Stored(__version__, fingerprint(), traces, events.value, hooks, of_trace, partials))
        except Unstorable:
            if not partials:
                raise
            del partials[max(partials, key=lambda name: len(partials[name]))]  # the others are still worth it


def load(location: str) -> Stored:
    """Read a file of partials. Raises Refused: it is not whole, or of another version or other code."""
    stored = read_partials(location)
    if stored.version != __version__:
        raise Refused(f"is of perfscope {stored.version[:20]}")
    if stored.code != fingerprint():
        raise Refused("is of other code of perfscope")
    if not 1 <= len(stored.traces) <= len(_PLACES):
        raise Refused("is of no trace")
    return stored


def get(files: TraceFiles, task: MeasureTask, absent: Collection[str]) -> tuple[MeasuredTrace, tuple[str, ...]]:
    """What partials say of a trace, and the analyzers for which they say nothing.

    Raises Refused: they cannot be taken.
    """
    stored = load(partials_path(files.path))
    require_traces(stored.traces, files, absent)
    measured = _unpack(stored.trace, MeasuredTrace, files, "its trace")
    assert isinstance(measured, MeasuredTrace)
    if measured.summary is not None and (measured.summary.world_size or 0) > MOST_RANKS:
        raise Refused("is of more ranks than a job has")
    differing = events_of(measured, files, wanted_events(task)).value ^ stored.events
    partials = {
        analyzer.name: _unpack(stored.partials[analyzer.name], analyzer.partial_kind(), files, analyzer.name)
        for analyzer in BUILT_IN
        if analyzer.name in task.analyzers
        and analyzer.name in stored.partials
        and not differing & analyzer.varies_with.value
    }
    damage = tuple(line.replace(_IN_SENTENCES, files.path) for line in measured.damage)
    present = {name: partial for name, partial in partials.items() if partial is not None}
    lacking = tuple(name for name in task.analyzers if name not in partials)
    return replace(measured, partials=present, damage=damage), lacking


def require_traces(identities: Sequence[Identity], files: TraceFiles, absent: Collection[str]) -> None:
    """Raise Refused unless the traces are those that were measured; absent ones cannot be compared."""
    paths = paths_of(files)
    if len(paths) != len(identities):
        raise Refused("is of other windows")
    for path, identity in zip(paths, identities, strict=True):
        name = file_name(path)
        try:
            if path in absent:
                is_same = identity.name.removesuffix(".gz") == name.removesuffix(".gz")
            else:
                is_same = identify(path) == identity
        except SourceError as error:  # the store failed, which says nothing of whose partials these are
            raise Refused(f"cannot be compared with its trace: {error.problem.removeprefix(path).strip()}") from None
        except OSError as error:
            raise Refused(f"cannot be compared with its trace: {error.strerror or error}") from None
        if not is_same:
            raise Refused("is of another trace")


def paths_of(files: TraceFiles) -> tuple[str, ...]:
    """The files that are measured as one trace."""
    return (files.path,) if files.operators is None else (files.path, files.operators)


@cache
def fingerprint() -> str:
    """A hash of the code that partials depend on, the same on every host that has this version."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _CODE for path in _PACKAGE.glob(pattern)):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def _pack(value: object, kind: object, files: TraceFiles) -> Raw:
    """A value in which marks stand for the paths of the traces; Unstorable where it would not come back as it is."""
    content = pack_value(value, kind)
    for path, place in zip(paths_of(files), _PLACES, strict=False):
        content = content.replace(msgspec.msgpack.encode(path), place)
    if any(path.encode() in content for path in paths_of(files)):
        raise Unstorable("it holds a trace's path in a sentence")
    return Raw(content)


def _unpack(packed: Raw, kind: object, files: TraceFiles, name: str) -> object:
    """A value with the paths that the traces have now; Refused where it is of another type."""
    content = bytes(packed)
    for path, place in zip(paths_of(files), _PLACES, strict=False):
        content = content.replace(place, msgspec.msgpack.encode(path))
    try:
        return unpack_value(content, kind)
    except ValueError as error:
        raise Refused(f"is damaged: {name}: {error}") from None
