"""The tensors of a safetensors file, from its header: 8 bytes of length, then JSON; no tensor is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

#: The limit of the format's own library.
LARGEST_HEADER = 100_000_000
_LENGTH_BYTES = 8
_BITS_PER_BYTE = 8
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


class SafetensorsDamage(Exception):
    """A file is not a complete safetensors file; the text is the problem."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a header."""

    name: str
    dtype: str
    elements: int
    size_bytes: int


def read_safetensors(path: Path) -> tuple[StoredTensor, ...]:
    """Read a file's header and check it against the file.

    Raises:
        SafetensorsDamage: The header is not complete, or does not fit the file.
        OSError: The file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, LARGEST_HEADER):
            raise SafetensorsDamage(f"is not a complete safetensors file: a header of {length:,} bytes in {size:,}")
        content = file.read(length)
    try:
        header = json.loads(content)
    except (ValueError, RecursionError):
        raise SafetensorsDamage("has a header that is not JSON") from None
    if not isinstance(header, dict):
        raise SafetensorsDamage("has a header that is not a JSON object")
    tensors = [_tensor(name, entry) for name, entry in header.items() if name != "__metadata__"]
    end = max((stop for _, stop in tensors), default=0)
    data = size - _LENGTH_BYTES - length
    if end > data:
        raise SafetensorsDamage(f"is cut off: its header describes {end:,} bytes of tensors, {data:,} are present")
    return tuple(tensor for tensor, _ in tensors)


def _tensor(name: str, entry: object) -> tuple[StoredTensor, int]:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(stop)]}:
            sizes = [size for size in shape if isinstance(size, int) and size >= 0]
        case _:
            raise SafetensorsDamage(f"has no complete entry for {name[:60]!r}")
    elements = prod(sizes)
    is_consistent = len(sizes) == len(shape) and 0 <= start <= stop
    if not is_consistent or elements * _ITEM_BITS.get(dtype, 0) > (stop - start) * _BITS_PER_BYTE:
        raise SafetensorsDamage(f"has an entry for {name[:60]!r} that cannot be right")
    return StoredTensor(name, _DTYPES.get(dtype, dtype), elements, stop - start), stop
