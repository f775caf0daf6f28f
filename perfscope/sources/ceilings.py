"""Reads what ``perfscope doctor --ceiling -o FILE`` wrote."""

from __future__ import annotations

from pathlib import Path

import msgspec

from perfscope.errors import SourceError
from perfscope.files import read_regular
from perfscope.tables.ceiling import Ceiling

SCHEMA = "perfscope/ceiling/1"


class _File(Ceiling, frozen=True, kw_only=True):
    schema: str


def read_ceiling(path: Path) -> Ceiling:
    """Read the ceilings of a machine. Raises SourceError: the file cannot be read, or is something else."""
    try:
        content = read_regular(path)
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    return parse_ceiling(path, content)


def parse_ceiling(path: Path, content: bytes) -> Ceiling:
    """Parse the ceilings of a machine. Raises SourceError: they cannot be read, or are something else."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except msgspec.MsgspecError as error:
        raise SourceError(path, f"is no file of `perfscope doctor --ceiling`: {error}") from None
    if file.schema != SCHEMA:
        raise SourceError(path, f"has the schema {file.schema!r}, not {SCHEMA!r}")
    return file
