"""The files below a folder, with links resolved: what a link names inside the folder is listed once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfscope.errors import SourceError

#: More files than any checkpoint has.
MOST_FILES = 1_000_000


@dataclass(frozen=True, slots=True)
class Listing:
    """The files below a folder.

    Attributes:
        sizes: The size of each in bytes, by its path in the folder.
        modified_ns: When each was last modified; empty for a list of names.
        aliases: Links to a file or folder that is listed by itself, with the path of that.
        broken: Links that lead nowhere, with what they name.
    """

    sizes: Mapping[str, int]
    modified_ns: Mapping[str, int] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)


def list_files(folder: Path) -> Listing:
    """List every file below a folder; links to folders elsewhere are followed, each folder once.

    Raises:
        SourceError: A folder cannot be read, or there are too many files.
    """
    root = os.path.realpath(folder)
    stats: dict[str, tuple[int, int]] = {}
    aliases: dict[str, str] = {}
    broken: dict[str, str] = {}
    visited = {root}
    waiting = [("", root)]
    while waiting:
        parent, place = waiting.pop()
        for entry in _entries(place):
            name = f"{parent}{entry.name}"
            target = os.path.realpath(entry.path) if entry.is_symlink() else None
            if target is not None and not Path(target).exists():
                broken[name] = str(Path(entry.path).readlink())
            elif target is not None and target.startswith(root + os.sep):
                aliases[name] = Path(target).relative_to(root).as_posix()
            elif entry.is_dir():
                real = target or entry.path
                if real not in visited:
                    visited.add(real)
                    waiting.append((f"{name}/", real))
            else:
                status = entry.stat()
                stats[name] = status.st_size, status.st_mtime_ns
        if len(stats) > MOST_FILES:
            raise SourceError(folder, f"holds more than {MOST_FILES:,} files", hint="name one checkpoint in it")
    names = sorted(stats)
    return Listing(
        {name: stats[name][0] for name in names},
        {name: stats[name][1] for name in names},
        dict(sorted(aliases.items())),
        dict(sorted(broken.items())),
    )


def _entries(place: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            return list(entries)
    except OSError as error:
        raise SourceError(place, f"cannot be read: {error.strerror}") from None
