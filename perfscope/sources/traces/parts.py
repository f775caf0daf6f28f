"""The parts of a compressed trace that can be inflated apart, where its header says where they are.

An index is believed only where all of it agrees with the file; then each part is held against its length and its
checksum. So a file that is cut off, damaged, or compressed by somebody else has no parts: it is read as one stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO, cast

from isal import isal_zlib
from msgspec import Struct

from perfscope.constants import KIB
from perfscope.sources.stores.location import is_url
from perfscope.sources.traces.files import open_trace
from perfscope.sources.traces.inflate import LARGEST_RATIO
from perfscope.wire.trace_parts import END_OF_STREAM, EXTRA_FIELD, GZIP_HEADER, INDEX, PART, SUBFIELD, TRAILER

#: Its stub does not say that it is an exception.
_INFLATE_ERROR = cast("type[Exception]", isal_zlib.error)
_RAW_WINDOW = -15  # zlib's code for a stream without a header, with the largest window
_READ_BYTES = 128 * KIB


class PartsDiffer(Exception):
    """A part is not what the index says: the file must be read as one stream."""


class Part(Struct, frozen=True):
    """A part of a compressed file.

    Attributes:
        offset: Where it begins in the file.
        size: Its bytes in the file.
        length: Its bytes when inflated.
        checksum_before: CRC-32 of all parts before it.
        checksum: CRC-32 of all parts up to its end.
    """

    offset: int
    size: int
    length: int
    checksum_before: int
    checksum: int


def read_parts(path: str) -> tuple[Part, ...]:
    """The parts of a file in order; none where it has no index that agrees with it."""
    if is_url(path):
        return ()
    with open_trace(path) as file:
        return _read_parts(file)


def inflate_parts(path: str, parts: Sequence[Part]) -> Iterator[bytes]:
    """Yield what parts of a file contain, piece by piece.

    Raises:
        PartsDiffer: One is not what the index says.
    """
    with open_trace(path) as file:
        for part in parts:
            file.seek(part.offset)
            yield from _inflate(file, part)


def _read_parts(file: BinaryIO) -> tuple[Part, ...]:
    head = file.read(len(GZIP_HEADER) + EXTRA_FIELD.size)
    if not head.startswith(GZIP_HEADER) or len(head) != len(GZIP_HEADER) + EXTRA_FIELD.size:
        return ()
    extra, name, room = EXTRA_FIELD.unpack_from(head, len(GZIP_HEADER))
    index = file.read(room)
    is_ours = name == SUBFIELD and extra == room + len(SUBFIELD) + 2
    if not is_ours or len(index) != room or room < INDEX.size or (room - INDEX.size) % PART.size:
        return ()
    begin = file.tell()
    file_bytes = file.seek(0, 2)
    file.seek(max(begin, file_bytes - len(END_OF_STREAM) - TRAILER.size))
    return _parts(index, begin, file_bytes, file.read())


def _parts(index: bytes, begin: int, file_bytes: int, end: bytes) -> tuple[Part, ...]:
    """The parts of an index; none where it contradicts itself, the size of the file, or its end."""
    part_bytes, length, stated_bytes = INDEX.unpack_from(index)
    rows = list(PART.iter_unpack(index[INDEX.size :]))
    if not part_bytes or not rows or stated_bytes != file_bytes or len(rows) != -(-length // part_bytes):
        return ()
    parts: list[Part] = []
    offset, checksum_before = begin, 0
    for row, (size, checksum) in enumerate(rows):
        inflated = min(part_bytes, length - row * part_bytes)
        if inflated > LARGEST_RATIO * size:
            return ()
        parts.append(Part(offset, size, inflated, checksum_before, checksum))
        offset, checksum_before = offset + size, checksum
    expected = END_OF_STREAM + TRAILER.pack(checksum_before, length & 0xFFFFFFFF)
    return tuple(parts) if end == expected and offset + len(end) == file_bytes else ()


def _inflate(file: BinaryIO, part: Part) -> Iterator[bytes]:
    """Yield one part.

    Raises:
        PartsDiffer: It is not what the index says.
    """
    stream = isal_zlib.decompressobj(wbits=_RAW_WINDOW)
    unread, length, checksum = part.size, part.length, part.checksum_before
    while unread:
        block = file.read(min(unread, _READ_BYTES))
        if not block:
            raise PartsDiffer
        unread -= len(block)
        try:
            data = stream.decompress(block, length + 1)  # one more would be seen
        except _INFLATE_ERROR:
            raise PartsDiffer from None
        length -= len(data)
        if length < 0 or stream.unconsumed_tail or stream.eof:
            raise PartsDiffer
        checksum = isal_zlib.crc32(data, checksum)
        yield data
    if length or checksum != part.checksum:
        raise PartsDiffer
