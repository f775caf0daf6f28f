"""The files below a folder, with links resolved: what a link names inside the folder is listed once."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.files import describe_kind

#: Entries of a kind that damage names.
MOST_LISTED = 10
#: More files than any checkpoint has.
MOST_FILES = 1_000_000
#: Checkpoints nest about five folders.
_DEEPEST_FOLDER = 32


class FileDamage(Exception):
    """A file is not complete, or was made to harm its reader; ``names`` is what loading it would call."""

    def __init__(self, text: str, names: frozenset[str] = frozenset()) -> None:
        super().__init__(text)
        self.names = names


@dataclass(frozen=True, slots=True)
class Listing:
    """The files below a folder, by path: sizes in bytes, links to what is listed itself, broken links, and damage."""

    sizes: Mapping[str, int]
    modified_ns: Mapping[str, int] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)


def list_files(folder: Path) -> Listing:
    """List every file below a folder; links to folders elsewhere are followed, each folder once.

    Raises SourceError: the folder cannot be read, or there are too many files.
    """
    lister = _Lister(os.path.realpath(folder))
    lister.list_all()
    sizes, modified_ns = dict(sorted(lister.sizes.items())), dict(sorted(lister.modified_ns.items()))
    links = (dict(sorted(names.items())) for names in (lister.aliases, lister.broken, lister.unreadable))
    return Listing(sizes, modified_ns, *links)


class _Lister:
    """Gathers a Listing."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.sizes: dict[str, int] = {}
        self.modified_ns: dict[str, int] = {}
        self.aliases: dict[str, str] = {}
        self.broken: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        self._visited = {root}
        self._waiting = [("", root, 0)]

    def list_all(self) -> None:
        while self._waiting:
            parent, real_path, depth = self._waiting.pop()
            try:
                with os.scandir(real_path) as entries:
                    for entry in entries:
                        self._add(f"{parent}{entry.name}", entry, depth)
            except OSError as error:
                if not parent:
                    raise SourceError(real_path, f"cannot be read: {error.strerror}") from None
                self.unreadable[parent.removesuffix("/")] = f"cannot be read: {error.strerror}"
            if len(self.sizes) > MOST_FILES:
                raise SourceError(self.root, f"holds more than {MOST_FILES:,} files", hint="name one checkpoint in it")

    def _add(self, name: str, entry: os.DirEntry[str], depth: int) -> None:
        try:
            target = os.path.realpath(entry.path) if entry.is_symlink() else None
            if target is not None and not Path(target).exists():
                self.broken[name] = str(Path(entry.path).readlink())
            elif target is not None and target.startswith(self.root + os.sep):
                self.aliases[name] = Path(target).relative_to(self.root).as_posix()
            elif entry.is_dir():
                self._add_folder(name, target or entry.path, depth + 1)
            else:
                self._add_file(name, entry.stat())
        except OSError as error:  # it was renamed or deleted after its folder was read
            self.unreadable[name] = f"cannot be read: {error.strerror}"

    def _add_folder(self, name: str, real_path: str, depth: int) -> None:
        if self.root.startswith(real_path.rstrip(os.sep) + os.sep):
            self.unreadable[name] = "is a link to a folder around this one; it is not followed"
        elif depth > _DEEPEST_FOLDER:
            self.unreadable[name] = f"is more than {_DEEPEST_FOLDER} folders deep; it is not read"
        elif real_path not in self._visited:
            self._visited.add(real_path)
            self._waiting.append((f"{name}/", real_path, depth))

    def _add_file(self, name: str, status: os.stat_result) -> None:
        kind = describe_kind(status.st_mode)
        if kind is not None or not stat.S_ISREG(status.st_mode):
            self.unreadable[name] = f"is {kind or 'no regular file'}; it is not read"
        else:
            self.sizes[name], self.modified_ns[name] = status.st_size, status.st_mtime_ns
