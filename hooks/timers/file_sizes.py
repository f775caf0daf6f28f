"""Sizes of files, for hooks that processes import which never train."""

from __future__ import annotations

import os
from typing import Any


def size_of_file(path: Any) -> int | None:
    """The size of a local file; None where there is none of this path."""
    try:
        return os.stat(path).st_size
    except (OSError, TypeError, ValueError):
        return None
