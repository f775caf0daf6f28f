"""The files that a rank's process writes, and appends records to: whole lines, each by one write.

A script may close descriptors that are not its own, as daemons do, and open files that get their numbers. Each write
therefore asks first whether the descriptor still means the file of records, and else opens that again.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import os
import zlib

from perfscope.hooks.guard import call_safely
from perfscope.hooks.open_window import OPEN_WINDOW

#: Bytes of a full file, which is compressed in memory: some 8,000 lines of steps.
LARGEST_BYTES = 2 << 20
_LAST_STANDARD_STREAM = 2


class RecordFile:
    """A file that lines are appended to; every method raises OSError where the disk is full or gone."""

    def __init__(self, path: str, *, is_limited: bool = False) -> None:
        self._path = path
        self._is_limited = is_limited
        self._bytes = self._number = 0
        self._is_cut = False
        self._use(open_to_append(path))

    def append(self, lines: bytes) -> None:
        """Write whole lines at once."""
        if not is_same_file(self._descriptor, self._identity):
            self._use(open_to_append(self._path))
        if self._is_limited:
            # As late as that, so that the new file has lines at once: a look at a running job reads its end.
            if self._bytes >= LARGEST_BYTES and not OPEN_WINDOW.is_open:
                self._bytes = 0
                call_safely(self._put_aside)  # a file that cannot be put aside goes on growing
            self._bytes += len(lines)
        if self._is_cut:  # what follows a cut line is a line of its own
            lines = b"\n" + lines
        self._is_cut = os.write(self._descriptor, lines) != len(lines)
        if self._is_cut:
            raise OSError("the disk is full: a record was cut")

    def _use(self, descriptor: int) -> None:
        self._descriptor, self._identity = descriptor, identify(descriptor)

    def _put_aside(self) -> None:
        stem, suffix = os.path.splitext(self._path)
        self._number += 1
        aside, full = f"{stem}.{self._number:06d}{suffix}", self._descriptor
        fresh = open_to_append(f"{self._path}.new")
        try:
            os.rename(self._path, aside)
            os.rename(f"{self._path}.new", self._path)
        except OSError:
            os.close(fresh)
            raise
        self._use(fresh)
        os.close(full)
        _compress(aside)


def _compress(path: str) -> None:
    """Replace a file by FILE.gz; where that cannot be written, the file stays.

    No file is open meanwhile: the script may close any descriptor, and use its number.
    """
    with open(path, "rb") as file:
        content = file.read()
    packed = gzip.compress(content, zlib.Z_DEFAULT_COMPRESSION)  # lets other threads run
    with contextlib.suppress(OSError):
        replace_file(f"{path}.gz", packed)
        os.unlink(path)


def replace_file(path: str, content: bytes) -> None:
    """Replace a file in one step: a reader sees the old content or the new one, never a part.

    Raises OSError: it cannot be written; an existing file is unchanged.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def identify(descriptor: int) -> tuple[int, int]:
    """Which file a descriptor means. Raises OSError: it is not open."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def is_same_file(descriptor: int, identity: tuple[int, int]) -> bool:
    """Whether a descriptor means a file still."""
    try:
        return identify(descriptor) == identity
    except OSError:
        return False


def open_to_append(path: str) -> int:
    """Open or create a file. Raises OSError: that is impossible."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    if descriptor > _LAST_STANDARD_STREAM:
        return descriptor
    try:  # the script closed a standard stream: what it prints there must not end up in the records
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LAST_STANDARD_STREAM + 1)
    finally:
        os.close(descriptor)
