"""Reads and lists what lies behind URLs.

A file system retries what passes, with growing waits and a limit: S3's does so for throttling and for connections that
break, within a file, too. What fails in spite of it is an error that names the URL.
"""

from __future__ import annotations

import errno
import glob
import io
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from perfscope.constants import MIB
from perfscope.errors import SourceError
from perfscope.sources.stores.location import describe, failures, locate, url_of, without_secrets

#: How much is asked for at once: enough that the time to the first byte does not count, little enough for many workers.
AHEAD_BYTES = 4 * MIB
FILE, FOLDER = "file", "directory"
#: How many files are copied at the same time; each has one block in memory.
_READERS = 16
_TOO_LITTLE = "the store sent less of it than there is"


class NotStored(SourceError):
    """There is nothing at a URL."""


def open_stored(location: str, ahead_bytes: int = AHEAD_BYTES) -> BinaryIO:
    """Open a URL for reading bytes, of which so many are asked for at once. Raises SourceError, as NotStored."""
    filesystem, path = locate(location)
    try:
        opened: BinaryIO = filesystem.open(path, "rb", block_size=ahead_bytes)
    except failures() as error:
        kind = NotStored if isinstance(error, FileNotFoundError) else SourceError
        raise kind(location, f"cannot be read: {describe(error)}") from None
    return StoredFile(opened)


class StoredFile(io.BufferedIOBase, BinaryIO):
    """A file behind a URL; whatever its store raises is an OSError, as of a file on disk."""

    def __init__(self, opened: BinaryIO) -> None:
        self._opened = opened

    def read(self, size: int | None = -1, /) -> bytes:
        """See ``io.IOBase``."""
        with _as_of_disk():
            content = self._opened.read(-1 if size is None else size)
        if not content and size != 0 and self.tell() < (getattr(self._opened, "size", None) or 0):
            raise OSError(errno.EIO, _TOO_LITTLE)
        return content

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """See ``io.IOBase``."""
        with _as_of_disk():
            return self._opened.seek(offset, whence)

    def tell(self) -> int:
        """See ``io.IOBase``."""
        return self._opened.tell()

    def readable(self) -> bool:
        """See ``io.IOBase``."""
        return True

    def seekable(self) -> bool:
        """See ``io.IOBase``."""
        return self._opened.seekable()

    def close(self) -> None:
        """See ``io.IOBase``."""
        self._opened.close()
        super().close()


@contextmanager
def _as_of_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = without_secrets(error.strerror or str(error) or type(error).__name__)
        raise OSError(error.errno or errno.EIO, text) from None
    except failures() as error:
        raise OSError(errno.EIO, describe(error)) from None


@contextmanager
def _told_of(location: str, what: str) -> Iterator[None]:
    """Whatever a store raises becomes an error that says what could not be done."""
    try:
        yield
    except failures() as error:
        raise SourceError(location, f"cannot be {what}: {describe(error)}") from None


def kind_of(location: str) -> str | None:
    """``FILE``, ``FOLDER``, or None where there is nothing. Raises SourceError: the store does not say."""
    filesystem, path = locate(location)
    with _told_of(location, "read"):
        try:
            return FOLDER if filesystem.info(path)["type"] == FOLDER else FILE
        except FileNotFoundError:
            return None


def find_stored(location: str, endings: tuple[str, ...]) -> Iterator[str]:
    """The URLs of the files with such endings below a folder, or of those that a pattern matches, or of a file.

    Raises SourceError: the store does not list them.
    """
    filesystem, path = locate(location)
    kind = kind_of(location)
    with _told_of(location, "listed"):
        if kind == FOLDER:
            found = [match for match in filesystem.find(path) if match.endswith(endings)]
            matches = [match for match in found if not match.rpartition("/")[2].startswith(".")]  # never finished
        elif kind == FILE:
            matches = [path]
        else:
            matches = filesystem.glob(path) if glob.has_magic(path) else []
    yield from (url_of(match, location, path) for match in matches)


def list_folders(location: str) -> list[str]:
    """The URLs of the folders directly in a folder. Raises SourceError: the store does not list them."""
    filesystem, path = locate(location)
    with _told_of(location, "listed"):
        entries = filesystem.ls(path, detail=True)
    return [url_of(entry["name"], location, path) for entry in entries if entry["type"] == FOLDER]


def list_below(location: str) -> list[str]:
    """The names of all files below a folder, relative to it, but those that would lead out of it.

    Raises SourceError: the store does not list them.
    """
    filesystem, path = locate(location)
    start = f"{path.rstrip('/')}/"
    with _told_of(location, "listed"):
        found = filesystem.find(path)
    names = [key.removeprefix(start) for key in found if key.startswith(start)]
    return [name for name in names if not {"", ".", ".."} & set(name.split("/")) and "\\" not in name]


def copy_stored(files: Mapping[str, Path]) -> list[str]:
    """Copy files behind URLs, several at once; those that cannot be read, as sentences.

    Raises OSError: a copy cannot be written.
    """
    with ThreadPoolExecutor(_READERS) as readers:
        return [line for line in readers.map(_copy, files, files.values()) if line]


def _copy(url: str, path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as target:
            target.writelines(_blocks_of(url))
    except SourceError as error:
        path.unlink()
        return str(error)
    return ""


def _blocks_of(url: str) -> Iterator[bytes]:
    with open_stored(url) as source:
        try:
            yield from iter(partial(source.read, MIB), b"")
        except OSError as error:
            raise SourceError(url, f"cannot be read: {error.strerror or error}") from None
