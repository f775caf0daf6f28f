"""Files that hold nothing but zeros where they are looked at: room was made for them, and nothing was written.

A shard that a node allocated before it died has its right size. Zeros prove nothing of tensors, because moments and
biases begin as zeros; but every item of a shard begins with a header, and weights are not zero throughout.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import IO

from perfscope.files import open_regular

#: Places that are looked at, the first and the last bytes among them, and bytes at each.
SAMPLES = 64
SAMPLE_BYTES = 4096
_UNIT_OF_BLOCKS = 512  # of stat, whatever the file system's own is
#: So many bytes of a file are read at most to compare storages with their checksums; more where half of it is zero.
_LARGEST_READ = 1 << 24
_LARGEST_READ_OF_ZEROS = 1 << 26
_LOCAL_HEADER = 30  # of zip, before the name and what follows it


def describe_zeros(path: Path, begin: int = 0) -> str | None:
    """What makes a file suspicious that is zero from ``begin`` on, in words; None where it is not.

    Args:
        path: The file.
        begin: The first byte that counts.

    Raises:
        OSError: It cannot be read.
    """
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        last = status.st_size - SAMPLE_BYTES
        if last <= begin:
            return None
        for number in range(SAMPLES):
            file.seek(begin + (last - begin) * number // (SAMPLES - 1))
            if file.read(SAMPLE_BYTES).strip(b"\0"):
                return None
    written = status.st_blocks * _UNIT_OF_BLOCKS
    sparse = f", and the file system has {written:,} bytes of it" if written < status.st_size // 2 else ""
    return f"is zero at all {SAMPLES} places looked at{sparse}: its data may never have been written"


def describe_zero_storages(
    path: Path, sizes: Mapping[str, int], headers: Mapping[str, int], checksums: Mapping[str, int]
) -> str | None:
    """What proves that storages of a file of ``torch.save`` were never written, in words; None where nothing does.

    Zeros alone are no proof, as moments begin as zeros; the file also has a checksum of each storage. The storages that
    are zero where they are looked at are compared with theirs, the smallest first.

    Args:
        path: The file, a zip archive.
        sizes: The bytes of each storage, by key.
        headers: Where the header of each begins in the file.
        checksums: The CRC-32 of each; 0 where there is none.

    Raises:
        OSError: It cannot be read.
    """
    keys = [key for key, size in sizes.items() if size]
    ends = list(accumulate(sizes[key] for key in keys))
    if not ends:
        return None
    zeros: dict[str, int] = {}
    damaged = 0
    with open_regular(path) as file:
        for number in range(SAMPLES):
            offset = (ends[-1] - 1) * number // (SAMPLES - 1)
            row = bisect_right(ends, offset)
            key, size = keys[row], sizes[keys[row]]
            begin = min(offset - (ends[row] - size), max(size - SAMPLE_BYTES, 0))
            file.seek(_begin_of_data(file, headers[key]) + begin)
            if not file.read(min(SAMPLE_BYTES, size)).strip(b"\0"):
                zeros[key] = zeros.get(key, 0) + 1
        places = sum(zeros.values())
        unread = _LARGEST_READ_OF_ZEROS if 2 * places >= SAMPLES else _LARGEST_READ
        for key in sorted(zeros, key=sizes.__getitem__):
            unread -= sizes[key]
            if unread < 0:
                break
            if checksums[key]:
                file.seek(_begin_of_data(file, headers[key]))
                damaged += zlib.crc32(file.read(sizes[key])) != checksums[key]
    return _describe_damaged(damaged, places) if damaged else None


def _describe_damaged(storages: int, places: int) -> str:
    if places == SAMPLES:
        return f"is zero at all {SAMPLES} places looked at, but its checksums are of other data: never written"
    of_whom = "a storage there is not that of its checksum"
    if storages > 1:
        of_whom = f"{storages:,} storages there is not that of their checksums"
    return f"is zero at {places} of {SAMPLES} places looked at, and the data of {of_whom}"


def _begin_of_data(file: IO[bytes], header: int) -> int:
    """Where the data of a member of a zip archive begins, of which the header begins at ``header``."""
    header = max(header, 0)  # a damaged archive may state less
    file.seek(header)
    text = file.read(_LOCAL_HEADER)
    return header + _LOCAL_HEADER + int.from_bytes(text[26:28], "little") + int.from_bytes(text[28:30], "little")
