"""Partials of traces as files: what ``measure`` gives for a trace, stored, and taken in place of the trace.

A file is taken where this code wrote it, where its traces are the ones at hand, byte for byte, and where they were read
for the same kinds of events, as far as these change a partial. So an answer is the same with it and without it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perfscope import __version__
from perfscope.constants import MOST_RANKS
from perfscope.engine.registry import BUILT_IN, Analyzer
from perfscope.engine.tasks import MeasuredTrace
from perfscope.engine.windows import TraceFiles
from perfscope.sources.partials.header import SCHEMA, Header, Identity, identify, sha256
from perfscope.sources.partials.stored import Packed, Refused, StoredPartials, pack_section, read_partials, to_bytes
from perfscope.sources.partials.values import Unstorable
from perfscope.tables.trace import NO_EVENTS, Events
from perfscope.wire.traces import TraceMetadata

#: A file of partials is at most this share of the trace's, but may always be this large.
LARGEST_SHARE = 0.02
FLOOR_BYTES = 16 * 1024
#: The section with what is known of a trace besides its partials.
_OF_TRACE = ""
#: What stands for the trace's path in sentences.
_MARK = "\0trace\0"
_PACKAGE = Path(__file__).resolve().parents[1]
_BYTECODE = "__pycache__"
#: Modules are smaller.
_MODULE_BYTES = 64 * 1024
#: What partials depend on.
_CODE = ("analyzers", "engine", "sources/partials", "sources/traces", "tables")


class LoadedPartials(Struct, frozen=True):
    """A file of partials that is whole and of this code.

    Attributes:
        stored: The file.
        events: The kinds of events that were read of the trace.
    """

    stored: StoredPartials
    events: Events

    @property
    def traces(self) -> tuple[Identity, ...]:
        """The trace that they are of, and the window with operators that was measured with it."""
        return self.stored.header.traces

    def of_trace(self, files: TraceFiles) -> MeasuredTrace:
        """What is known of the trace, without a partial.

        Raises:
            Refused: It is damaged, or states what no job has.
        """
        measured = self.stored.unpack(_OF_TRACE, MeasuredTrace, paths_of(files))
        assert isinstance(measured, MeasuredTrace)
        if measured.summary is not None and (measured.summary.world_size or 0) > MOST_RANKS:
            raise Refused("is of more ranks than a job has")
        damage = tuple(line.replace(_MARK, files.path) for line in measured.damage)
        return replace(measured, damage=damage)

    def serves(self, analyzer: Analyzer, events: Events) -> bool:
        """Whether reading these kinds of events would give the analyzer's partial that is stored here."""
        if analyzer.name not in self.stored.header.measured:
            return False
        if self.events == events:
            return True
        differing = (self.events ^ events) & analyzer.varies_with
        if analyzer.name in self.stored.header.alike_without_grids:
            differing &= ~Events.GRIDS
        return not differing

    def partial_of(self, analyzer: Analyzer, files: TraceFiles) -> object | None:
        """The analyzer's partial; None where the trace had nothing for it.

        Raises:
            Refused: It is damaged.
        """
        if analyzer.name not in self.stored.sections:
            return None
        return self.stored.unpack(analyzer.name, analyzer.partial_kind(), paths_of(files))

    def measured(self, files: TraceFiles) -> MeasuredTrace:
        """All of it.

        Raises:
            Refused: A part is damaged.
        """
        partials = {
            analyzer.name: self.partial_of(analyzer, files)
            for analyzer in BUILT_IN
            if analyzer.name in self.stored.sections
        }
        return replace(self.of_trace(files), partials=partials)


def load(location: str) -> LoadedPartials:
    """Read a file of partials.

    Raises:
        Refused: It is not whole, or of another version or other code.
    """
    stored = read_partials(location)
    header = stored.header
    if header.version != __version__:
        raise Refused(f"is of perfscope {header.version[:20]}")
    if header.code != fingerprint():
        raise Refused("is of other code of perfscope")
    if not 1 <= len(header.traces) <= len(paths_of(TraceFiles("", ""))):
        raise Refused("is of no trace")
    try:
        return LoadedPartials(stored, to_events(header.events))
    except KeyError:
        raise Refused("is of events that perfscope does not read") from None


def store(
    measured: MeasuredTrace,
    files: TraceFiles,
    names: Collection[str],
    events: Events,
    *,
    alike_without_grids: frozenset[str] = frozenset(),
    traces: Sequence[Identity] = (),
    hooks: TraceMetadata | None = None,
) -> bytes:
    """What was measured of a trace, as the content of a file.

    Partials are stored in the order of the registry, as long as the file stays within its limit of size.

    Args:
        measured: What ``measure`` gave; a trace that could not be read has nothing to store.
        files: The trace, or both windows.
        names: The analyzers that measured it.
        events: All kinds of events that were read of it.
        alike_without_grids: Analyzers whose partials are the same where no grids of kernels are read.
        traces: The identities of the files; by default they are read for them.
        hooks: What the hooks wrote into the trace.

    Raises:
        Unstorable: It could not be read, an analyzer failed, or the file would be too large.
        SourceError: A trace cannot be opened.
        OSError: A trace cannot be read.
    """
    if measured.summary is None or measured.mismatch is not None or measured.failed:
        raise Unstorable("the trace could not be measured")
    paths = paths_of(files)
    traces = traces or [identify(path) for path in paths]
    of_trace = replace(measured, partials={}, damage=tuple(line.replace(files.path, _MARK) for line in measured.damage))
    packed = [pack_section(_OF_TRACE, of_trace, MeasuredTrace, paths)]
    listed: list[str] = []
    limit = max(FLOOR_BYTES, int(LARGEST_SHARE * traces[0].size))
    alike = tuple(sorted(alike_without_grids))
    header = Header(SCHEMA, __version__, fingerprint(), tuple(traces), _to_names(events), (), (), hooks, alike)
    content = to_bytes(header, packed)
    for analyzer in BUILT_IN:
        if not analyzer.is_stored or analyzer.name not in names:
            continue
        section = _pack(analyzer, measured, paths)
        if section is None and analyzer.name in measured.partials:
            continue
        trial = [*packed, *([] if section is None else [section])]
        larger = to_bytes(msgspec.structs.replace(header, measured=(*listed, analyzer.name)), trial)
        if len(larger) <= limit:
            content, packed = larger, trial
            listed.append(analyzer.name)
    return content


@cache
def to_events(names: tuple[str, ...]) -> Events:
    """The kinds of events of these names.

    Raises:
        KeyError: There is no such kind.
    """
    events = NO_EVENTS
    for name in names:
        events |= Events[name]
    return events


@cache
def fingerprint() -> str:
    """A hash of the code that partials depend on, the same on every host that has this version."""
    package = str(_PACKAGE)  # paths of pathlib would take longer than to read the files
    contents: list[bytes] = []
    for folder in _CODE:
        for path in sorted(_list_code(f"{package}/{folder}")):
            contents += path.removeprefix(package).encode(), _read_whole(path)
    return sha256(b"".join(contents)).hexdigest()


def _list_code(folder: str) -> Iterator[str]:
    """The files of Python below a folder."""
    folders = [folder]
    while folders:
        with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    yield entry.path
                elif entry.name != _BYTECODE and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def _read_whole(path: str) -> bytes:
    """The bytes of a small file, in fewer calls of the system than a file object makes."""
    number = os.open(path, os.O_RDONLY)
    try:
        content = os.read(number, _MODULE_BYTES)
        while len(content) % _MODULE_BYTES == 0 and (rest := os.read(number, _MODULE_BYTES)):
            content += rest
        return content
    finally:
        os.close(number)


def _pack(analyzer: Analyzer, measured: MeasuredTrace, paths: Sequence[str]) -> Packed | None:
    """The section of an analyzer; None where it has no partial, or one that cannot be stored."""
    partial = measured.partials.get(analyzer.name)
    if partial is None:
        return None
    try:
        return pack_section(analyzer.name, partial, analyzer.partial_kind(), paths)
    except Unstorable:
        return None


def _to_names(events: Events) -> tuple[str, ...]:
    return tuple(event.name for event in Events if event in events and event.name is not None)


def paths_of(files: TraceFiles) -> tuple[str, ...]:
    """The files that are measured as one trace."""
    return (files.path,) if files.operators is None else (files.path, files.operators)
