"""The bytes of a trace file, inflated as they are read, and the intact part of a damaged file."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain
from typing import BinaryIO, cast

from isal import isal_zlib

from perfscope.constants import KIB, MIB
from perfscope.errors import SourceError
from perfscope.files import GZIP_MAGIC, LARGEST_RATIO
from perfscope.sources.stores.location import describe, failures
from perfscope.sources.stores.reading import AHEAD_BYTES
from perfscope.sources.traces.files import open_trace

#: Its stub does not say that it is an exception.
_INFLATE_ERROR = cast("type[Exception]", isal_zlib.error)
_GZIP_WINDOW = 31  # zlib's code for a gzip stream with the largest window
#: A megabyte when inflated: more would not stay in the processor's cache.
READ_BYTES = 64 * KIB
_CAREFUL_BYTES = 512
_LARGEST_KEPT_BYTES = 31 * MIB


def read_blocks(path: str, damage: list[str], ahead_bytes: int = AHEAD_BYTES) -> Iterator[bytes]:
    """Yield a file's content piece by piece; its damage is added to ``damage`` as sentences.

    Of a URL ``ahead_bytes`` are asked for at once. SourceError where it cannot be opened, or inflates without end.
    """
    # glibc maps and unmaps large blocks anew until a block of that size was freed: M_MMAP_THRESHOLD in mallopt(3).
    bytes(_LARGEST_KEPT_BYTES)
    try:
        with open_trace(path, ahead_bytes) as file:
            block = file.read(READ_BYTES)
            if block.startswith(GZIP_MAGIC):
                yield from _inflate(path, chain((block,), _rest(file)), damage)
            else:
                yield from chain((block,), _rest(file))
    except failures() as error:
        raise SourceError(path, f"cannot be read: {describe(error)}") from None


@contextmanager
def read_ahead(path: str, damage: list[str]) -> Iterator[Iterator[bytes]]:
    """What ``read_blocks`` gives; a thread fetches and inflates the next block meanwhile."""
    blocks = read_blocks(path, damage)
    with ThreadPoolExecutor(1, "perfscope-ahead") as thread:
        yield _one_ahead(blocks, thread)


def _one_ahead(blocks: Iterator[bytes], thread: Executor) -> Iterator[bytes]:
    following = thread.submit(next, blocks, None)
    while (block := following.result()) is not None:
        following = thread.submit(next, blocks, None)
        yield block


def _rest(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(READ_BYTES):
        yield block


def _inflate(path: str, blocks: Iterable[bytes], damage: list[str]) -> Iterator[bytes]:
    """Yield what the blocks of a gzip file contain, up to its damage."""
    stream = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
    inflated = read = 0
    is_complete = False
    for raw in blocks:
        block = raw
        read += len(block)
        while block:
            try:
                data = stream.decompress(block)
            except _INFLATE_ERROR as error:
                yield _inflate_carefully(path)[inflated:]
                damage.append(f"{path}: its gzip stream is damaged ({_reason(error)}); what follows it is lost")
                return
            inflated += len(data)
            if inflated > LARGEST_RATIO * max(read, READ_BYTES):
                raise SourceError(path, f"inflates to more than {LARGEST_RATIO} times its size: it is not a trace")
            yield data
            is_complete = stream.eof
            # A gzip file may have several members; padding follows the last one.
            block = stream.unused_data if stream.unused_data.startswith(GZIP_MAGIC) else b""
            if is_complete:
                stream = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
    if not is_complete:
        yield stream.flush()
        damage.append(f"{path}: its gzip stream is cut off; what was not written is lost")


def _inflate_carefully(path: str) -> bytes:
    """Inflate again in small pieces, and byte by byte where one fails, to keep everything before the damage."""
    stream = zlib.decompressobj(wbits=_GZIP_WINDOW)
    pieces: list[bytes] = []
    with open_trace(path) as file, suppress(zlib.error):
        while piece := file.read(_CAREFUL_BYTES):
            checkpoint = stream.copy()
            try:
                pieces.append(stream.decompress(piece))
            except zlib.error:
                pieces.extend(checkpoint.decompress(piece[index : index + 1]) for index in range(len(piece)))
            if stream.eof and stream.unused_data.startswith(GZIP_MAGIC):
                file.seek(-len(stream.unused_data), 1)
                stream = zlib.decompressobj(wbits=_GZIP_WINDOW)
    return b"".join(pieces)


def _reason(error: Exception) -> str:
    return "its checksum does not match" if "crc" in str(error).lower() or "check" in str(error) else str(error)
