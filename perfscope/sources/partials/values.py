"""Values of stated types as MessagePack: no more can come out than the type says."""

from __future__ import annotations

import math
from functools import cache
from typing import get_args

import msgspec
import numpy as np

from perfscope.sources.partials.arrays import Numbers, pack_array, unpack_array

_ARRAY = 1
#: How MessagePack begins floating-point numbers of 8 and 4 bytes, and the least second byte of those that are infinite
#: or none; their first one is among the exponents.
_FLOATS = ((b"\xcb", b"\xf0"), (b"\xca", b"\x80"))
_EXPONENTS = (b"\x7f", b"\xff")


class Unstorable(Exception):
    """A value that would not come back as it is."""


def pack_value(value: object, kind: object) -> bytes:
    """A value of a type as bytes, from which ``unpack_value`` makes the same value again.

    Raises:
        Unstorable: It holds something that cannot be stored, or is not of the type.
    """
    try:
        content = _ENCODER.encode(value)
        again = _ENCODER.encode(unpack_value(content, kind))
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError, msgspec.MsgspecError) as error:
        raise Unstorable(f"{type(error).__name__}: {error}") from None
    if again != content:
        raise Unstorable("it would come back as another value")
    return content


def unpack_value(content: bytes, kind: object) -> object:
    """The value of a type.

    Raises:
        ValueError: The bytes hold none, or one of another type.
    """
    try:
        value: object = _decoder(kind).decode(content)
        _require_numbers(content)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return value


def _require_numbers(content: bytes) -> None:
    """Require that every floating-point number is finite: no report has room for another one.

    Raises:
        ValueError: One is not.
    """
    for mark, least in _FLOATS:
        offset = content.find(mark)
        while offset >= 0:
            if content[offset + 1 : offset + 2] in _EXPONENTS and content[offset + 2 : offset + 3] >= least:
                # What looks like one may be a part of an array.
                if _holds_no_number(_ANYTHING.decode(content)):
                    raise ValueError("a number that is infinite, or none")
                return
            offset = content.find(mark, offset + 1)


def _holds_no_number(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_holds_no_number, value)) or any(map(_holds_no_number, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_holds_no_number, value))


@cache
def _decoder(kind: object) -> msgspec.msgpack.Decoder[object]:
    return msgspec.msgpack.Decoder(kind, ext_hook=_read_extension, dec_hook=_require_array)


def _encode_array(value: object) -> msgspec.msgpack.Ext:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} cannot be stored")
    return msgspec.msgpack.Ext(_ARRAY, pack_array(value))


def _read_extension(code: int, block: memoryview) -> Numbers:
    if code != _ARRAY:
        raise ValueError("an extension that perfscope does not write")
    return unpack_array(block)


def _require_array(kind: object, value: object) -> object:
    """Refuse an array of other numbers than the type says, as ``ndarray[shape, dtype[int64]]`` for ``Int64``."""
    if not isinstance(value, np.ndarray) or value.dtype.type not in _number_types(kind):
        raise ValueError("an array of other numbers than the analyzer's")
    return value


@cache
def _number_types(kind: object) -> frozenset[object]:
    stated = [number for argument in get_args(kind)[1:] for number in get_args(argument)]
    return frozenset(member for number in stated for member in (get_args(number) or (number,)))


def _skip_extension(_code: int, _block: memoryview) -> None:
    return None


_ANYTHING = msgspec.msgpack.Decoder(ext_hook=_skip_extension)
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)
