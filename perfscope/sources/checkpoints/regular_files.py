"""Files opened so that a FIFO or a device, which may never answer, is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

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


def open_regular(path: Path) -> IO[bytes]:
    """Open a file to read its bytes, without waiting for a FIFO's writer.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = describe_kind(os.fstat(descriptor).st_mode)
    if kind is not None:
        os.close(descriptor)
        raise OSError(0, f"it is {kind}", str(path))
    return os.fdopen(descriptor, "rb")
