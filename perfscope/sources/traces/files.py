"""Locations of traces: files, folders, patterns, and URLs that fsspec can open."""

from __future__ import annotations

import glob
import io
import os
import re
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from perfscope.errors import SourceError, UsageError
from perfscope.files import open_descriptor, open_regular
from perfscope.sources.stores.location import is_url
from perfscope.sources.stores.reading import AHEAD_BYTES, FOLDER, find_stored, kind_of, open_stored
from perfscope.wire import TRACE_SUFFIX
from perfscope.wire.traces import PARTIALS_SUFFIX, partials_path

TRACE_ENDINGS = (".json", ".json.gz")
#: The rank of a trace that does not state it, or a pattern that finds it in the path.
RankRule: TypeAlias = "int | re.Pattern[str]"
RANK_IN_FILE_NAME = re.compile(r"rank[_\-.]?(\d+)[^/]*$", re.IGNORECASE)
#: A folder with more files than this is hardly one of traces.
_MOST_FILES = 100_000


def open_trace(location: str, ahead_bytes: int = AHEAD_BYTES) -> BinaryIO:
    """Open a file for reading bytes, or a URL, of which some are asked for at once; SourceError where it cannot be."""
    if is_url(location):
        return open_stored(location, ahead_bytes)
    try:
        return cast("BinaryIO", open_regular(location))
    except OSError as error:
        raise SourceError(location, f"cannot be read: {error.strerror or error}") from None


def open_small(location: str) -> BinaryIO:
    """Open a file for few reads, which no buffer makes faster, or a URL.

    Raises OSError: it cannot be opened, or is no regular file. SourceError: the URL cannot be opened.
    """
    return open_stored(location) if is_url(location) else cast("BinaryIO", io.FileIO(location, opener=open_descriptor))


def find_traces(locations: Sequence[str]) -> list[str]:
    """The traces among files, below folders and behind patterns, each once, in the order of their names.

    Raises SourceError: a location does not exist. UsageError: there are very many files that may be traces;
    listing stops there.
    """
    paths: set[str] = set()
    for location in locations:
        found = find_stored(location, TRACE_ENDINGS) if is_url(location) else _find_local(location, TRACE_ENDINGS)
        matches = list(islice(found, _MOST_FILES + 1))
        if len(matches) > _MOST_FILES:
            hint = "name the folder of one run, or a pattern"
            raise UsageError(f"{location} holds more than {_MOST_FILES:,} JSON files that may be traces", hint=hint)
        if not matches and not _is_folder(location):
            raise SourceError(location, "does not exist")
        paths.update(matches)
    # A trace that is being compressed exists twice for a moment.
    uncompressed = {path.removesuffix(".gz") for path in paths if path.endswith(f"{TRACE_SUFFIX}.gz")}
    return sorted(paths - uncompressed)


def find_absent(locations: Sequence[str], traces: Sequence[str]) -> list[str]:
    """The traces below folders of which the partials alone are there, by the paths that they would have."""
    beside = {partials_path(trace) for trace in traces}
    endings = (PARTIALS_SUFFIX,)
    # One text for each, in one list: sets of very many would take several times as much memory.
    absent = sorted(
        f"{path.removesuffix(PARTIALS_SUFFIX)}.json.gz"
        for location in locations
        if _is_folder(location)
        for path in (find_stored(location, endings) if is_url(location) else _find_local(location, endings))
        if path not in beside
    )
    return [path for path, _ in groupby(absent)]


def _is_folder(location: str) -> bool:
    if is_url(location):
        return kind_of(location) == FOLDER
    return Path(location).is_dir()


def _find_local(location: str, endings: tuple[str, ...]) -> Iterator[str]:
    path = Path(location)
    if path.is_dir():
        for folder, _, names in os.walk(path, followlinks=True):
            for name in names:
                if name.endswith(endings) and not name.startswith("."):  # a process began it and never finished
                    yield f"{folder.removesuffix(os.sep)}{os.sep}{name}"
    elif path.exists():
        yield location
    elif glob.has_magic(location):
        for match in glob.iglob(location, recursive=True):  # noqa: PTH207 - Path.glob takes no absolute pattern
            yield from _find_local(match, endings)
