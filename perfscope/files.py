"""Whole files or none: what is written replaces the old file in one step."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from perfscope.errors import SourceError

_ANY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file's content, keeping its mode; a reader sees the old bytes or the new ones, never a part.

    Raises:
        SourceError: The file is read-only, or its folder cannot be written.
    """
    target = path.resolve()
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not mode & _ANY_WRITE:
        raise SourceError(path, "is read-only", hint=f"chmod u+w {path}")
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(stat.S_IMODE(mode) if mode is not None else 0o644)
        temporary.replace(target)
    except OSError as error:
        raise SourceError(path, f"cannot be written: {error.strerror}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
