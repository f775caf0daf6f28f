"""The files that a checkpoint save of this process wrote, and their sizes as the file system states them."""

from __future__ import annotations

import contextlib
import itertools
import os
import time

from perfscope.hooks.facts.secrets import redact_path

#: Files of configurations and tokenizers, which frameworks write without a function that hooks could time.
_TEXT_ENDINGS = (".json", ".jsonl", ".txt", ".model", ".jinja", ".md", ".yaml", ".yml")
_MOST_ENTRIES = 2000
_MOST_NAMED = 500
_CLOCK_TOLERANCE_S = 2.0  # file systems have clocks of their own


def _normal(path: str) -> str:
    return path if "://" in path else os.path.normpath(path)


class WrittenFiles:
    """What one save of this process is known to have written."""

    def __init__(self) -> None:
        self._sizes: dict[str, int | None] = {}
        self._unnamed_bytes: int | None = None
        self._is_anything_unknown = False
        self._text_folders: set[str] = set()
        self._began_s = time.time()

    def add_file(self, path: str, size_bytes: int | None) -> None:
        """A file was written; None where its size is unknown, and with it that of the save."""
        self._sizes[_normal(path)] = size_bytes

    def add_bytes(self, size_bytes: int | None) -> None:
        """Bytes were written to files without known names; None where it is unknown how many."""
        if size_bytes is None:
            self._is_anything_unknown = True
        else:
            self._unnamed_bytes = (self._unnamed_bytes or 0) + size_bytes

    def add_text_folder(self, folder: str) -> None:
        """The save writes configurations or a tokenizer into a folder, from this process."""
        self._text_folders.add(folder)

    def add_text_files(self) -> None:
        """Look for the configurations and tokenizers that were written since the save began."""
        since_s = self._began_s - _CLOCK_TOLERANCE_S
        for folder in self._text_folders:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in itertools.islice(entries, _MOST_ENTRIES):
                    if entry.name.endswith(_TEXT_ENDINGS) and entry.stat().st_mtime >= since_s:
                        self._sizes.setdefault(_normal(entry.path), entry.stat().st_size)
        self._text_folders.clear()

    @property
    def size_bytes(self) -> int | None:
        """All bytes; None where something unknown was written, or nothing was reported."""
        if self._is_unreported or self._is_anything_unknown or None in self._sizes.values():
            return None
        return sum(size or 0 for size in self._sizes.values()) + (self._unnamed_bytes or 0)

    @property
    def count(self) -> int | None:
        """The number of files; None where it is unknown."""
        is_unknown = self._is_unreported or self._is_anything_unknown or self._unnamed_bytes
        return None if is_unknown else len(self._sizes)

    def named(self) -> tuple[tuple[str, int | None], ...] | None:
        """Path and size of each file, without secrets; None where unknown, or where there are very many."""
        if self.count is None or self.count > _MOST_NAMED:
            return None
        return tuple((redact_path(path), size) for path, size in sorted(self._sizes.items()))

    @property
    def _is_unreported(self) -> bool:
        return not self._sizes and self._unnamed_bytes is None
