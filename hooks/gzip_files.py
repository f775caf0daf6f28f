"""Compresses full files of records, a piece at a time, so that no turn of whoever does it takes long.

zlib lets other threads run. A process that ends leaves plain lines, which all readers accept. This file imports the
standard library only: the NVML sampler runs without perfscope on its path.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIX = ".gz"
#: A piece takes a millisecond of a processor.
_PIECE_BYTES = 1 << 16
_LEVEL = 5
_GZIP = 31  # zlib's largest window, in a gzip file


class GzipFiles:
    """The files that wait to be compressed."""

    def __init__(self) -> None:
        self._paths: deque[str] = deque()
        self._running: Iterator[None] | None = None

    def add(self, path: str) -> None:
        """Nothing is appended to a file any more."""
        self._paths.append(path)

    def advance(self, pieces: int) -> None:
        """Compress some pieces of each file that waits."""
        for _ in range(pieces * (len(self._paths) + (self._running is not None))):
            if self._running is None:
                self._running = _compress(self._paths.popleft())
            if next(self._running, self) is self:
                self._running = None
                if not self._paths:
                    return


def _compress(path: str) -> Iterator[None]:
    """Replace a file by FILE.gz; where that cannot be written, the file stays.

    No file is open between two pieces: the script may close any descriptor, and use its number.
    """
    unfinished = f"{path}{SUFFIX}.tmp"
    packer, at, mode = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP), 0, "wb"
    try:
        while True:
            with open(path, "rb") as file, open(unfinished, mode) as packed:
                file.seek(at)
                piece = file.read(_PIECE_BYTES)
                packed.write(packer.compress(piece) if piece else packer.flush())
            if not piece:
                break
            at, mode = at + len(piece), "ab"
            yield
        os.replace(unfinished, path + SUFFIX)
        os.unlink(path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
