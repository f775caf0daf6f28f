"""Files of records that grow for weeks: full ones are put aside under a number, and packed beside training."""

from __future__ import annotations

import os

from perfscope.hooks.guard import call_safely
from perfscope.hooks.open_window import OPEN_WINDOW
from perfscope.hooks.pack_records import start_packing

#: Lines of a full file.
LINES = 8192


class RotatedFile:
    """A file that lines are appended to, by a descriptor that stays the same.

    Attributes:
        descriptor: What to write to.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self.descriptor = descriptor
        self._path = path
        self._lines = 0
        self._number = 0

    def add_lines(self, count: int) -> None:
        """So many lines are about to be appended; a full file is put aside, but not in the middle of a profiler window.

        It is put aside as late as that, so that the new file has lines at once: a look at a running job reads its end.
        """
        if self._lines >= LINES and not OPEN_WINDOW.is_open:
            self._lines = 0
            call_safely(self._rotate)  # a file that cannot be put aside goes on growing
        self._lines += count

    def _rotate(self) -> None:
        """Put the file aside, and let the descriptor mean a new one.

        Raises:
            OSError: A file cannot be renamed or made; lines are still appended to the old one.
        """
        folder, name = os.path.split(self._path)
        stem, suffix = os.path.splitext(name)
        self._number += 1
        aside = os.path.join(folder, f"{stem}.{self._number:06d}{suffix}")
        fresh = os.open(f"{self._path}.new", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.rename(self._path, aside)
            os.rename(f"{self._path}.new", self._path)
            os.dup2(fresh, self.descriptor, inheritable=False)
        finally:
            os.close(fresh)
        start_packing(aside)
