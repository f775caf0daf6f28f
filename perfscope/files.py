"""Files read so that nothing is waited for, and replaced in one step, so that nobody reads a part.

Text is read so that writing it gives the same bytes.
"""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from perfscope.constants import MIB
from perfscope.errors import SourceError

#: gzip cannot exceed 1032:1; traces reach 25:1, snapshots 40:1. A file far above that would fill the memory.
LARGEST_RATIO = 200
GZIP_MAGIC = b"\x1f\x8b"
#: No file of records is larger when it is compressed.
_MOST_INFLATED = 256 * MIB
_ANY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)


def describe_kind(mode: int) -> str | None:
    """What a file is instead of a regular one; None for a regular one."""
    return next((name for applies, name in _KINDS if applies(mode)), None)


def open_descriptor(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file, else ``OSError``: a FIFO's writer may never come, and a device may never end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(0, f"it is {describe_kind(mode) or 'no file'}", os.fspath(path))
    return descriptor


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a regular file to read its bytes, else ``OSError``."""
    return os.fdopen(open_descriptor(path), "rb")


def read_regular(path: Path) -> bytes:
    """All bytes of a regular file, else ``OSError``."""
    with open_regular(path) as file:
        return file.read()


def read_compressed(path: Path) -> bytes:
    """What a gzip file of records holds, else ``OSError``: it is cut off, or inflates to more than such files do."""
    try:
        with open_regular(path) as file:
            content = gzip.GzipFile(fileobj=file).read(_MOST_INFLATED + 1)
    except (EOFError, zlib.error) as error:
        raise OSError(0, str(error), os.fspath(path)) from None
    if len(content) > _MOST_INFLATED:
        raise OSError(0, "it inflates to more than any file of records", os.fspath(path))
    return content


def read_text(path: Path) -> str:
    """Read a text file so that ``encode("utf-8", "surrogateescape")`` gives its bytes again.

    Raises:
        SourceError: The file cannot be read, or is no text.
    """
    try:
        content = read_regular(path)
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    if b"\0" in content:
        raise SourceError(path, "is not text: it contains NUL bytes")
    return content.decode("utf-8", "surrogateescape")


def replace_file(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Replace a file's content and keep its mode; a reader sees the old bytes or the new ones, never a part.

    Raises:
        SourceError: The file is read-only, or its folder cannot be written.
    """
    target = path.resolve()
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not mode & _ANY_WRITE:
        raise SourceError(path, "is read-only", hint=f"chmod u+w {path}")
    temporary: Path | None = None
    try:
        import tempfile  # with the random numbers in it, it takes long to import

        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(stat.S_IMODE(mode) if mode is not None else 0o644)
        temporary.replace(target)
    except OSError as error:
        raise SourceError(path, f"cannot be written: {error.strerror}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
