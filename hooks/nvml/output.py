"""Where the NVML sampler writes its lines: a full file is closed, compressed, and followed by another one.

A week of a node with eight GPUs is two gigabytes of lines. Run beside the sampler: this file imports nothing of
perfscope, because it runs without perfscope on its path.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: Bytes of a full file.
FULL_BYTES = 4 << 20
_STDOUT = 1
_SUFFIX = ".jsonl"
_GZIP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gzip_files.py")


class Output:
    """The standard output, and the files that follow it where it is one; ``full=BYTES`` among the words is their size.

    Attributes:
        head: What each file begins with, beside the moment; set by the first line.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.head: dict[str, object] = {}
        stated = [word.partition("=")[2] for word in words if word.startswith("full=")]
        self._full_bytes = int(stated[0]) if stated else FULL_BYTES
        self._bytes = 0
        self._full: Any = runpy.run_path(_GZIP)["GzipFiles"]()

    def write(self, record: dict[str, object]) -> None:
        """Append a line. Raises OSError: the disk is full or gone."""
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if os.write(_STDOUT, line) != len(line):
            raise OSError("the disk is full: a line was cut")
        self._bytes += len(line)

    def rotate_if_full(self, now: dict[str, object]) -> None:
        """Begin another file where this one is full, and compress a piece of those before it.

        A file that cannot be followed goes on growing.

        Args:
            now: The moment, as in the first line.
        """
        self._full.advance(1)
        if self._bytes < self._full_bytes:
            return
        self._bytes = 0
        with contextlib.suppress(OSError):
            path = _path_of_output()
            if path is not None:
                self._rotate(path, now)

    def _rotate(self, path: str, now: dict[str, object]) -> None:
        descriptor = _create_next(path)
        os.dup2(descriptor, _STDOUT)
        os.close(descriptor)
        self.write({**self.head, **now, "continues": True})
        self._full.add(path)


def _path_of_output() -> str | None:
    """The file that the standard output is; None for a pipe."""
    if not stat.S_ISREG(os.fstat(_STDOUT).st_mode):
        return None
    path = os.readlink(f"/proc/self/fd/{_STDOUT}")
    return path if path.endswith(_SUFFIX) and os.path.exists(path) else None


def _create_next(path: str) -> int:
    """Create the file behind HOST.jsonl or HOST.7.jsonl: HOST.1.jsonl or HOST.8.jsonl, or the next free number.

    Raises OSError: it cannot be created.
    """
    stem, _, number = path.removesuffix(_SUFFIX).rpartition(".")
    if not stem or not number.isdigit() or os.sep in number:
        stem, number = path.removesuffix(_SUFFIX), "0"
    following = int(number) + 1
    while True:
        path = f"{stem}.{following}{_SUFFIX}"
        try:
            if not os.path.exists(f"{path}.gz"):
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            pass
        following += 1
