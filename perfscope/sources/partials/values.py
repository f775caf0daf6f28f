"""Values of stated types as MessagePack: no more can come out than the type says."""

from __future__ import annotations

from functools import cache
from typing import get_args

import msgspec
import numpy as np

from perfscope.sources.partials.arrays import Numbers, pack_array, unpack_array

_ARRAY = 1


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
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return value


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


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)
