"""The text of a large trace in shares that processes read apart, each of them one share after the other.

The parts of a file that perfscope compressed are inflated apart. Any other gzip file is inflated by every process,
which takes a seventh of the time of scanning it, and each scans its own shares. Of plain JSON each reads its shares.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from perfscope.constants import MIB
from perfscope.sources.stores.location import is_url
from perfscope.sources.traces.files import open_trace
from perfscope.sources.traces.inflate import READ_BYTES, DamagedStream, inflate_strictly, is_gzip
from perfscope.sources.traces.parts import Part, PartsDiffer, inflate_parts, read_parts

#: A smaller trace is read sooner in one process.
_LEAST_BYTES, _LEAST_COMPRESSED_BYTES = 64 * MIB, 4 * MIB
#: More processes would not inflate one stream sooner.
_MOST_FOR_STREAM = 4
_SLICE_BYTES = 2 * MIB
#: A claim is two bytes, and all claims fit the buffer of a pipe.
_MOST_SHARES = 4096
_CLAIM_BYTES = 2


class Text(Protocol):
    """The text of a file in shares.

    Attributes:
        path: The file.
        count: How many shares there are.
        most_processes: How many processes may be of use.
    """

    path: str
    count: int
    most_processes: int

    def reopened(self) -> Text:
        """The same for another process."""
        ...

    def share(self, number: int) -> Iterator[bytes]:
        """The text of a share, piece by piece; after a share come only later ones.

        Raises:
            PartsDiffer: The file is damaged, or has changed.
        """
        ...

    def close(self) -> None:
        """Read no more."""
        ...


def divide_text(path: str, processes: int) -> Text | None:
    """The text of a file in shares; None where it is small, or must be read as one stream."""
    if is_url(path) or not Path(path).is_file():  # what a pipe holds can be read once
        return None
    parts = read_parts(path)
    if parts:
        return PartedText(path, parts, processes) if sum(part.length for part in parts) >= _LEAST_BYTES else None
    size, is_compressed = Path(path).stat().st_size, is_gzip(path)
    if size < (_LEAST_COMPRESSED_BYTES if is_compressed else _LEAST_BYTES):
        return None
    return StreamedText(path, processes) if is_compressed else PlainText(path, processes)


def divide(count: int, processes: int) -> list[range]:
    """Shares of so many units, in order: large ones first, and small ones last, so that processes end together."""
    least = max(2, -(-count // _MOST_SHARES))
    shares, begin = [], 0
    while begin < count:
        size = max((count - begin) // (2 * processes), least)
        shares.append(range(begin, min(begin + size, count)))
        begin += size
    return shares


class PartedText:
    """The text of a file whose parts can be inflated apart."""

    def __init__(self, path: str, parts: Sequence[Part], processes: int) -> None:
        self.path, self._parts = path, parts
        self._shares = divide(len(parts), processes)
        self.count = self.most_processes = len(self._shares)

    def reopened(self) -> PartedText:
        """The same: each share opens the file."""
        return self

    def share(self, number: int) -> Iterator[bytes]:
        """The text of a share."""
        share = self._shares[number]
        return inflate_parts(self.path, self._parts[share.start : share.stop])

    def close(self) -> None:
        """Nothing is open."""


class StreamedText:
    """The text of a gzip file; its units are pieces of the compressed file."""

    def __init__(self, path: str, processes: int) -> None:
        self.path, self._processes = path, processes
        self._file = open_trace(path)
        self._identity = _identity(self._file.fileno())
        self._shares = divide(-(-self._identity[2] // READ_BYTES), min(processes, _MOST_FOR_STREAM))
        self._texts = self._inflate()
        self._next: tuple[int, bytes] | None = None
        self.count, self.most_processes = len(self._shares), _MOST_FOR_STREAM

    def reopened(self) -> StreamedText:
        """The same, from the beginning on.

        Raises:
            PartsDiffer: The file has changed.
        """
        text = StreamedText(self.path, self._processes)
        if text._identity == self._identity:
            return text
        text.close()
        raise PartsDiffer

    def share(self, number: int) -> Iterator[bytes]:
        """The text of a share."""
        share, is_last = self._shares[number], number == self.count - 1
        try:
            while item := self._next or next(self._texts, None):
                self._next = None
                if item[0] >= share.stop and not is_last:
                    self._next = item
                    return
                if item[0] >= share.start:
                    yield item[1]
        except DamagedStream:
            raise PartsDiffer from None
        if not is_last:
            raise PartsDiffer

    def close(self) -> None:
        """Read no more."""
        self._file.close()

    def _inflate(self) -> Iterator[tuple[int, bytes]]:
        """Pieces of the text, each with the number of the piece of the file that ends it."""
        pieces = 0

        def read() -> Iterator[bytes]:
            nonlocal pieces
            while piece := self._file.read(READ_BYTES):
                yield piece
                pieces += 1

        for text in inflate_strictly(self.path, read()):
            yield pieces, text


class PlainText:
    """The text of a file that is not compressed."""

    def __init__(self, path: str, processes: int) -> None:
        self.path, self._processes = path, processes
        self._file = open_trace(path)
        self._identity = _identity(self._file.fileno())
        self._shares = divide(-(-self._identity[2] // _SLICE_BYTES), processes)
        self.count = self.most_processes = len(self._shares)

    def reopened(self) -> PlainText:
        """The same, with a place in the file of its own.

        Raises:
            PartsDiffer: The file has changed.
        """
        text = PlainText(self.path, self._processes)
        if text._identity == self._identity:
            return text
        text.close()
        raise PartsDiffer

    def share(self, number: int) -> Iterator[bytes]:
        """The text of a share."""
        share = self._shares[number]
        self._file.seek(share.start * _SLICE_BYTES)
        yield from islice(iter(partial(self._file.read, _SLICE_BYTES), b""), len(share))
        if _identity(self._file.fileno()) != self._identity:
            raise PartsDiffer

    def close(self) -> None:
        """Read no more."""
        self._file.close()


class Claims:
    """The numbers of shares that no process has claimed yet; a process that is forked claims from the same ones."""

    def __init__(self, numbers: range) -> None:
        self._claims, unclaimed = os.pipe()
        try:
            os.write(unclaimed, b"".join(number.to_bytes(_CLAIM_BYTES) for number in numbers))
        finally:
            os.close(unclaimed)

    def __iter__(self) -> Iterator[int]:
        while claim := os.read(self._claims, _CLAIM_BYTES):
            yield int.from_bytes(claim)

    def close(self) -> None:
        """Claim no more."""
        os.close(self._claims)


def _identity(file: int) -> tuple[int, int, int, int]:
    """What tells a file from another one, or from what it was before."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
