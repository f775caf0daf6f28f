"""The bytes of a trace file, inflated as they are read, and the intact part of a damaged file."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import BinaryIO, cast

from isal import isal_zlib

from perfscope.constants import KIB, MIB
from perfscope.errors import SourceError
from perfscope.sources.stores.failures import describe, failures
from perfscope.sources.traces.files import open_trace

#: Its stub does not say that it is an exception.
_INFLATE_ERROR = cast("type[Exception]", isal_zlib.error)
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's code for a gzip stream with the largest window
#: Two megabytes when inflated: more would not stay in the processor's cache, and would be mapped anew each time.
READ_BYTES = 128 * KIB
_MOST_INFLATED_BYTES = 4 * MIB
_CAREFUL_BYTES = 512
#: gzip cannot exceed 1032:1, traces reach 25:1; a file far above that is not a trace, and would fill the memory.
LARGEST_RATIO = 250
_RATIO_MATTERS_ABOVE_BYTES = 256 * MIB


class DamagedStream(Exception):
    """A gzip stream is damaged.

    Attributes:
        reason: In words; None where it is cut off.
    """

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason)
        self.reason = reason


def read_blocks(path: str, damage: list[str]) -> Iterator[bytes]:
    """Yield a file's content piece by piece; its damage is added to ``damage`` as sentences.

    Raises:
        SourceError: The file cannot be opened, or inflates without end.
    """
    try:
        with open_trace(path) as file:
            block = file.read(READ_BYTES)
            if block.startswith(_GZIP_MAGIC):
                yield from _inflate(path, chain((block,), _rest(file)), damage)
            else:
                yield from chain((block,), _rest(file))
    except failures() as error:
        raise SourceError(path, f"cannot be read: {describe(error)}") from None


def _rest(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(READ_BYTES):
        yield block


def inflate_strictly(path: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield what the blocks of a gzip file contain.

    Raises:
        DamagedStream: They are damaged, or cut off.
        SourceError: They inflate without end.
    """
    stream = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
    inflated = read = 0
    is_complete = False
    for raw in blocks:
        block = raw
        read += len(block)
        while block:
            try:
                data = stream.decompress(block, _MOST_INFLATED_BYTES)
            except _INFLATE_ERROR as error:
                raise DamagedStream(_reason(error)) from None
            inflated += len(data)
            if inflated > _RATIO_MATTERS_ABOVE_BYTES and inflated > LARGEST_RATIO * read:
                raise SourceError(path, f"inflates to more than {LARGEST_RATIO} times its size: it is not a trace")
            yield data
            block = stream.unconsumed_tail
            is_complete = stream.eof
            if is_complete:
                # A gzip file may have several members; padding follows the last one.
                block = stream.unused_data if stream.unused_data.startswith(_GZIP_MAGIC) else b""
                stream = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
    if not is_complete:
        yield stream.flush()
        raise DamagedStream(None)


def _inflate(path: str, blocks: Iterable[bytes], damage: list[str]) -> Iterator[bytes]:
    """Yield what the blocks of a gzip file contain, up to its damage."""
    inflated = 0
    try:
        for data in inflate_strictly(path, blocks):
            inflated += len(data)
            yield data
    except DamagedStream as error:
        if error.reason is None:
            damage.append(f"{path}: its gzip stream is cut off; what was not written is lost")
            return
        yield _inflate_carefully(path)[inflated:]
        damage.append(f"{path}: its gzip stream is damaged ({error.reason}); what follows it is lost")


def _inflate_carefully(path: str) -> bytes:
    """Inflate again in small pieces, to keep everything before the damage."""
    stream = zlib.decompressobj(wbits=_GZIP_WINDOW)
    pieces: list[bytes] = []
    with open_trace(path) as file:
        while piece := file.read(_CAREFUL_BYTES):
            checkpoint = stream.copy()
            try:
                pieces.append(stream.decompress(piece))
                if stream.eof and stream.unused_data.startswith(_GZIP_MAGIC):
                    file.seek(-len(stream.unused_data), 1)
                    stream = zlib.decompressobj(wbits=_GZIP_WINDOW)
            except zlib.error:
                pieces.append(_inflate_until_damage(checkpoint, piece))
                break
    return b"".join(pieces)


def _reason(error: Exception) -> str:
    return "its checksum does not match" if "crc" in str(error).lower() or "check" in str(error) else str(error)


def _inflate_until_damage(stream: zlib._Decompress, piece: bytes) -> bytes:
    inflated = []
    for index in range(len(piece)):
        try:
            inflated.append(stream.decompress(piece[index : index + 1]))
        except zlib.error:
            break
    return b"".join(inflated)
