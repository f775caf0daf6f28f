"""The tensors of a safetensors file, from its header: 8 bytes of length, then JSON; no tensor is read."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

from perfscope.constants import BITS_PER_BYTE
from perfscope.files import open_regular
from perfscope.sources.checkpoints.listing import FileDamage
from perfscope.sources.pickles import LARGEST_SIZE, MOST_DIMENSIONS, without_collection

#: The limit of the format's own library.
LARGEST_HEADER = 100_000_000
_LENGTH = struct.Struct("<Q")
_ITEM_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("F4",), 4),
}
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
           "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
           "BOOL": "bool"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a header; its place is in the bytes after the header, its dtype as torch names it."""

    name: str
    dtype: str
    elements: int
    start: int
    stop: int
    shape: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self.stop - self.start


def read_safetensors(path: Path) -> tuple[StoredTensor, ...]:
    """Read a file's header and check it against the file.

    Raises FileDamage: the header is not complete, or does not fit the file. OSError: the file cannot be read.
    """
    with open_regular(path) as file, without_collection():
        return _parse_header(file, os.fstat(file.fileno()).st_size)


def _parse_header(file: IO[bytes], size: int) -> tuple[StoredTensor, ...]:
    start = file.read(_LENGTH.size)
    length = int.from_bytes(start, "little")
    if len(start) < _LENGTH.size or length > min(size - _LENGTH.size, LARGEST_HEADER):
        raise FileDamage(f"is not a complete safetensors file: a header of {length:,} bytes in {size:,}")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError):
        raise FileDamage("has a header that is not JSON") from None
    if not isinstance(header, dict):
        raise FileDamage("has a header that is not a JSON object")
    tensors = tuple(_tensor(name, entry) for name, entry in header.items() if name != "__metadata__")
    _check_places(tensors, size - _LENGTH.size - length)
    return tensors


def _tensor(name: str, entry: object) -> StoredTensor:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(stop)]}:
            pass
        case _:
            raise FileDamage(f"has no complete entry for {name[:60]!r}")
    numbers = (*shape[: MOST_DIMENSIONS + 1], start, stop)
    is_possible = len(shape) <= MOST_DIMENSIONS and all(type(number) is int for number in numbers)
    is_possible = is_possible and min(numbers) >= 0 and max(numbers) <= LARGEST_SIZE and start <= stop
    elements = prod(shape) if is_possible else 0
    bits = _ITEM_BITS.get(dtype)
    if not is_possible or (bits is not None and elements * bits != (stop - start) * BITS_PER_BYTE):
        raise FileDamage(f"has an entry for {name[:60]!r} that cannot be right")
    return StoredTensor(name, _DTYPES.get(dtype, dtype), elements, start, stop, tuple(shape))


def _check_places(tensors: Sequence[StoredTensor], data: int) -> None:
    """Check that the tensors fill the bytes behind the header, each byte once, as the format demands."""
    end = max((tensor.stop for tensor in tensors), default=0)
    if end > data:
        raise FileDamage(f"is cut off: its header describes {end:,} bytes of tensors, {data:,} are present")
    filled = 0
    before = None
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.stop)):
        if tensor.start < filled and before is not None and tensor.size_bytes:
            raise FileDamage(f"has overlapping tensors: {before.name[:60]!r} and {tensor.name[:60]!r}")
        if tensor.start > filled:
            raise FileDamage(f"has {tensor.start - filled:,} bytes before {tensor.name[:60]!r} of no tensor")
        filled, before = max(filled, tensor.stop), tensor
    if data > end:
        raise FileDamage(f"has {data - end:,} bytes of no tensor at its end")
