"""NumPy arrays as blocks of bytes: type, filter and shape, then little-endian numbers.

Columns of integers are stored as differences, and the bytes of all numbers together by their place, which makes
them smaller when they are deflated.
"""

from __future__ import annotations

import math
import struct
import sys

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.generic]

#: The types of numbers, by the byte that stands for them.
_TYPES = tuple(map(np.dtype, ("?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f4", "<f8")))
#: The same as this machine has them.
_NATIVE = tuple(kind.newbyteorder("=") for kind in _TYPES)
#: The unsigned integers by their bytes, for sums that wrap around.
_UNSIGNED = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
_PLAIN, _DIFFERENCES = 0, 1
_MOST_AXES = 4
_FEWEST_DIFFERENCES = 8
_HEAD = struct.Struct("<BBB")
_HEAD_BYTES = _HEAD.size
_LENGTH = struct.Struct("<I")
_LENGTH_BYTES = _LENGTH.size
_SHAPES = tuple(struct.Struct(f"<{axes}I") for axes in range(_MOST_AXES + 1))
#: The bytes of each type, and whether it is an integer with a sign, and a truth value: a driver asks for each array.
_SIZES = tuple((kind.itemsize, kind.kind == "i", kind.kind == "b") for kind in _TYPES)
#: Whether arrays are as this machine has them already.
_IS_NATIVE = sys.byteorder == "little"


def pack_array(array: Numbers) -> bytes:
    """An array as a block.

    Raises:
        TypeError: It holds something else than numbers.
    """
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if little.dtype not in _TYPES or array.ndim > _MOST_AXES or type(array) is not np.ndarray:
        raise TypeError(f"an array of {array.dtype} cannot be stored")
    filtered = array.ndim == 1 and array.dtype.kind == "i" and array.itemsize > 1 and len(array) >= _FEWEST_DIFFERENCES
    head = _HEAD.pack(_TYPES.index(little.dtype), _DIFFERENCES if filtered else _PLAIN, array.ndim)
    shape = b"".join(map(_LENGTH.pack, array.shape))
    return head + shape + (_to_differences(little) if filtered else np.ascontiguousarray(little).tobytes())


def unpack_array(block: bytes | memoryview) -> Numbers:
    """The array of a block.

    Raises:
        ValueError: It is none, or its length is not that of its shape.
    """
    size = len(block)
    if size < _HEAD_BYTES:
        raise ValueError("an array has no head")
    code, used_filter, axes = block[0], block[1], block[2]
    begin = _HEAD_BYTES + axes * _LENGTH_BYTES
    if code >= len(_TYPES) or used_filter > _DIFFERENCES or axes > _MOST_AXES or size < begin:
        raise ValueError("an array has a head that perfscope does not write")
    kind, (number_bytes, is_integer, is_truth) = _TYPES[code], _SIZES[code]
    shape = _SHAPES[axes].unpack_from(block, _HEAD_BYTES)
    if (shape[0] if axes == 1 else math.prod(shape)) * number_bytes != size - begin:
        raise ValueError("an array is longer or shorter than its shape")
    if used_filter == _DIFFERENCES:
        if not is_integer or axes != 1:
            raise ValueError("only a column of integers is stored as differences")
        return _to_native(_from_differences(block, begin, kind, number_bytes), code)
    content = bytearray(block[begin:])  # of its own: an array keeps what it is a view of
    if is_truth and content.translate(None, b"\0\1"):
        raise ValueError("a truth value is neither 0 nor 1")
    column = np.frombuffer(content, kind)
    return _to_native(column if axes == 1 else column.reshape(shape), code)


def _to_native(array: Numbers, code: int) -> Numbers:
    return array if _IS_NATIVE else array.astype(_NATIVE[code])


def _to_differences(column: Numbers) -> bytes:
    """Differences that wrap around, so that no number is too large for its type."""
    integers = column.view(np.dtype(f"<u{column.itemsize}"))
    differences = integers.copy()
    differences[1:] -= integers[:-1]
    return np.frombuffer(differences.tobytes(), np.uint8).reshape(-1, column.itemsize).T.tobytes()


def _from_differences(block: bytes | memoryview, begin: int, kind: np.dtype[np.generic], number_bytes: int) -> Numbers:
    unsigned = _UNSIGNED[number_bytes]
    by_place = np.frombuffer(block, np.uint8, offset=begin).reshape(number_bytes, -1)
    differences = np.frombuffer(by_place.tobytes("F"), unsigned)
    return np.add.accumulate(differences, dtype=unsigned).view(kind)
