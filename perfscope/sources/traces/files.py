"""Locations of traces: files, folders, patterns, and URLs that fsspec can open."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from perfscope.errors import SourceError, UsageError
from perfscope.wire import TRACE_SUFFIX

if TYPE_CHECKING:  # an optional dependency
    from fsspec import AbstractFileSystem

TRACE_ENDINGS = (".json", ".json.gz", ".xplane.pb")
_URL = "://"
#: A folder with more files than this is hardly one of traces.
MOST_FILES = 100_000


def is_url(location: str) -> bool:
    """Whether a location is a URL for fsspec.

    >>> is_url("s3://bucket/run/traces"), is_url("/data/traces")
    (True, False)
    """
    return _URL in location


def open_trace(location: str) -> BinaryIO:
    """Open a file or a URL for reading bytes.

    Raises:
        SourceError: It cannot be opened.
    """
    try:
        if not is_url(location):
            return Path(location).open("rb")
        opened: BinaryIO = _filesystem(location)[0].open(location, "rb")
    except OSError as error:
        raise SourceError(location, f"cannot be read: {error.strerror or error}") from None
    return opened


def find_traces(locations: Sequence[str], most: int = MOST_FILES) -> list[str]:
    """The traces among files, below folders and behind patterns, each once, in the order of their names.

    Raises:
        SourceError: A location does not exist.
        UsageError: There are more files than ``most`` that may be traces; listing stops there.
    """
    paths: set[str] = set()
    for location in locations:
        found = _find_remote(location) if is_url(location) else _find_local(location)
        matches = list(islice(found, most + 1))
        if len(matches) > most:
            hint = "name the folder of one run or a pattern, or raise --max-files"
            raise UsageError(f"{location} holds more than {most:,} JSON files that may be traces", hint=hint)
        if not matches and not _is_folder(location):
            raise SourceError(location, "does not exist")
        paths.update(matches)
    # A trace that is being compressed exists twice for a moment.
    uncompressed = {path.removesuffix(".gz") for path in paths if path.endswith(f"{TRACE_SUFFIX}.gz")}
    return sorted(paths - uncompressed)


def is_folder(location: str) -> bool:
    """Whether a location stands for the files below it or for those that match it, rather than for one file."""
    return glob.has_magic(location) or _is_folder(location)


def _is_folder(location: str) -> bool:
    if is_url(location):
        filesystem, path = _filesystem(location)
        return bool(filesystem.isdir(path))
    return Path(location).is_dir()


def _find_local(location: str) -> Iterator[str]:
    path = Path(location)
    if path.is_dir():
        for folder, _, names in os.walk(path, followlinks=True):
            for name in names:
                if name.endswith(TRACE_ENDINGS) and not name.startswith("."):  # a process began it and never finished
                    yield f"{folder.removesuffix(os.sep)}{os.sep}{name}"
    elif path.exists():
        yield location
    elif glob.has_magic(location):
        for match in glob.iglob(location, recursive=True):  # noqa: PTH207 - Path.glob takes no absolute pattern
            yield from _find_local(match)


def _find_remote(location: str) -> list[str]:
    filesystem, path = _filesystem(location)
    try:
        if filesystem.isdir(path):
            matches = [match for match in filesystem.find(path) if match.endswith(TRACE_ENDINGS)]
        elif filesystem.exists(path):
            matches = [path]
        else:
            matches = filesystem.glob(path) if glob.has_magic(path) else []
        return [filesystem.unstrip_protocol(match) for match in matches]
    except OSError as error:
        raise SourceError(location, f"cannot be listed: {error.strerror or error}") from None


def _filesystem(location: str) -> tuple[AbstractFileSystem, str]:
    try:
        import fsspec  # an optional dependency
    except ImportError:
        raise UsageError(f"{location} is a URL, which needs fsspec", hint="pip install fsspec") from None
    try:
        filesystem, path = fsspec.core.url_to_fs(location)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{location} cannot be opened: {error}") from None
    return filesystem, path
