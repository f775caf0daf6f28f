"""NumPy arrays as blocks of bytes: type, filter and shape, then little-endian numbers.

Columns of integers are stored as differences, and the bytes of all numbers together by their place, which makes
them smaller when they are deflated.
"""

from __future__ import annotations

import math
import struct

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
_LENGTH = struct.Struct("<I")


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


def unpack_array(block: bytes) -> Numbers:
    """The array of a block.

    Raises:
        ValueError: It is none, or its length is not that of its shape.
    """
    if len(block) < _HEAD.size:
        raise ValueError("an array has no head")
    code, used_filter, axes = _HEAD.unpack_from(block)
    begin = _HEAD.size + axes * _LENGTH.size
    if code >= len(_TYPES) or used_filter not in (_PLAIN, _DIFFERENCES) or axes > _MOST_AXES or len(block) < begin:
        raise ValueError("an array has a head that perfscope does not write")
    kind = _TYPES[code]
    shape = struct.unpack_from(f"<{axes}I", block, _HEAD.size)
    if math.prod(shape) * kind.itemsize != len(block) - begin:
        raise ValueError("an array is longer or shorter than its shape")
    if used_filter == _DIFFERENCES:
        if kind.kind != "i" or axes != 1:
            raise ValueError("only a column of integers is stored as differences")
        return _from_differences(block, begin, kind).astype(_NATIVE[code], copy=False)
    if kind.kind == "b" and block[begin:].translate(None, b"\0\1"):
        raise ValueError("a truth value is neither 0 nor 1")
    return np.frombuffer(block, kind, offset=begin).astype(_NATIVE[code]).reshape(shape)


def _to_differences(column: Numbers) -> bytes:
    """Differences that wrap around, so that no number is too large for its type."""
    integers = column.view(np.dtype(f"<u{column.itemsize}"))
    differences = integers.copy()
    differences[1:] -= integers[:-1]
    return np.frombuffer(differences.tobytes(), np.uint8).reshape(-1, column.itemsize).T.tobytes()


def _from_differences(block: bytes, begin: int, kind: np.dtype[np.generic]) -> Numbers:
    unsigned = _UNSIGNED[kind.itemsize]
    by_place = np.frombuffer(block, np.uint8, offset=begin).reshape(kind.itemsize, -1)
    differences = np.frombuffer(by_place.tobytes("F"), unsigned)
    return np.add.accumulate(differences, dtype=unsigned).view(kind)
