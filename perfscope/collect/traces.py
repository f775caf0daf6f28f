"""Which traces of a part come along: all of them, or those of some ranks and what an analysis cannot do without."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from perfscope import __version__, wire
from perfscope.sources.partials.stored import Refused, read_partials
from perfscope.sources.runs.records import decode_event, read_records
from perfscope.wire.records import WindowRecord
from perfscope.wire.traces import PARTIALS_SUFFIX, partials_path

#: What stands for the traces of every rank.
EVERY_RANK = "all"


@dataclass(frozen=True, slots=True)
class TraceChoice:
    """The traces that are brought besides those that have no partials.

    Attributes:
        ranks: Those of these ranks; of all where it is None.
    """

    ranks: frozenset[int] | None = frozenset()

    def choose(self, names: Collection[str], folders: Sequence[Path]) -> list[str]:
        """Choose among the traces of a part.

        Args:
            names: Their paths below the part.
            folders: Where all other files of the part are, which were copied before: some are in the run already.
        """
        if self.ranks is None:
            return sorted(names)
        stored = {path for folder in folders for path in _find_measured(folder)}
        wanted = {path for folder in folders for path in _find_recorded(folder, self.ranks)}
        return sorted(name for name in names if _stem(name) not in stored or _stem(name) in wanted)


def is_trace(name: str) -> bool:
    """Whether a file of a part is a trace, by its path below the part."""
    of_traces = name.startswith(f"{wire.TRACES_FOLDER}/")
    return of_traces and name.endswith((wire.TRACE_SUFFIX, f"{wire.TRACE_SUFFIX}.gz"))


def find_unlisted(folder: Path, names: Collection[str], choice: TraceChoice | None) -> list[str]:
    """What the windows of a part left and nobody lists, by the paths that it would have below the part.

    Where partials are listed, a trace that is not stays on its host, unless it is one of those that are wanted.

    Args:
        folder: Where the records of the part are.
        names: The files that are listed.
        choice: Which traces are copied; all of them where it is None.
    """
    listed = set(map(_stem, names))
    measured = set(_find_measured(folder))
    wanted = set(_find_recorded(folder, frozenset() if choice is None else choice.ranks))
    traces = [trace for trace in _find_recorded(folder, None) if trace not in listed]
    return [
        name
        for trace in traces
        if (trace in wanted or trace not in measured) and ".." not in PurePosixPath(trace).parts
        for name in (f"{trace}.gz", trace, partials_path(trace))
    ]


def _stem(name: str) -> str:
    return name.removesuffix(".gz")


def _find_measured(folder: Path) -> Iterator[str]:
    """The traces for which partials are there, by their paths below the part, not compressed."""
    for path in (folder / wire.TRACES_FOLDER).rglob(f"*{PARTIALS_SUFFIX}"):
        try:
            header = read_partials(str(path)).header
        except Refused:
            continue
        if header.version != __version__ or not header.traces:
            continue  # its trace will be read
        measured, *explaining = header.traces
        beside = path.relative_to(folder).parent
        yield _stem((PurePosixPath(beside) / measured.name).as_posix())
        # The window with operators that a light window was measured with stands in the folder above.
        yield from (f"{wire.TRACES_FOLDER}/{_stem(trace.name)}" for trace in explaining)


def _find_recorded(folder: Path, ranks: frozenset[int] | None) -> Iterator[str]:
    """The traces of the windows that some ranks recorded; those of all ranks where it is None."""
    for path in (folder / wire.RANKS_FOLDER).glob("*"):
        number = wire.parse_rank_folder(path.name)
        if number is not None and (ranks is None or number[0] in ranks):
            for event in read_records(path / wire.EVENTS_FILE, decode_event, []):
                if isinstance(event, WindowRecord):
                    yield f"{wire.TRACES_FOLDER}/{event.trace}"
