"""Files that hold nothing but zeros where they are looked at: room was made for them, and nothing was written.

A shard that a node allocated before it died has its right size. Zeros prove nothing of tensors, because moments and
biases begin as zeros; but every item of a shard begins with a header, and weights are not zero throughout.
"""

from __future__ import annotations

import os
from pathlib import Path

from perfscope.files import open_regular

#: Places that are looked at, the first and the last bytes among them, and bytes at each.
SAMPLES = 64
SAMPLE_BYTES = 4096
_UNIT_OF_BLOCKS = 512  # of stat, whatever the file system's own is


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
