"""Files of partials: what analyzers measured of one trace, as data, which stands beside it.

A file is 8 bytes, ``PSPART4`` and a newline, then a ``Stored`` as MessagePack, deflated by zlib. Nothing in it is code:
a value is decoded as the type that the analyzer's ``measure`` is annotated to return, or is refused.
"""

from __future__ import annotations

import math
import os
import re
import threading
import zlib
from functools import cache
from typing import get_args

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw, Struct

from perfscope.constants import MIB
from perfscope.errors import SourceError
from perfscope.files import GZIP_MAGIC
from perfscope.sources.stores.reading import NotStored
from perfscope.sources.traces.files import open_small
from perfscope.wire.traces import TraceMetadata, file_name

_MAGIC = b"PSPART4\n"
_LARGEST_FILE, _LARGEST_CONTENT = 8 * MIB, 32 * MIB
_ARRAY = 1
#: The product of a million sizes would take an hour.
_MOST_AXES = 4
#: The types of numbers that arrays may have, by their names in a file: little-endian.
_TYPES = frozenset(("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f4", "<f8"))
#: What floating-point numbers that are infinite, or none, look like in MessagePack; a part of an array may, too.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]|\xca[\x7f\xff][\x80-\xff]", re.DOTALL)
_RESOLVING = threading.Lock()
#: A gzip file ends with the CRC-32 and the size of its content (RFC 1952).
_TRAILER_BYTES = 8


class Refused(Exception):
    """A file of partials that is not taken; its text says why, in words that follow the file's name."""


class Missing(Refused):
    """There is no such file."""


class Unstorable(Exception):
    """A value that would not come back as it is."""


class Identity(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a compressed trace: the file's name, its bytes, and the checksum at its end in hexadecimal."""

    name: str
    size: int
    trailer: str


class Stored(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of partials.

    Attributes:
        version, code: The version of perfscope that measured, and a fingerprint of its code.
        traces: The trace; of two windows that were measured as one the light one, then the one with operators.
        events: The kinds of events that were read.
        hooks: What the hooks wrote into the trace, for where it is not at hand.
        trace: What is known of the trace besides its partials.
        partials: The partial of each analyzer that measured it; null where it found nothing of interest.
    """

    version: str
    code: str
    traces: tuple[Identity, ...]
    events: int
    hooks: TraceMetadata | None
    trace: Raw
    partials: dict[str, Raw]


def read_partials(location: str) -> Stored:
    """Read a file of partials, whose values are not decoded yet.

    Raises Refused: it cannot be read, is too large, not whole, or not of this format; Missing where there is none.
    """
    try:
        with open_small(location) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            content = file.read(min(size, _LARGEST_FILE))
    except (SourceError, OSError) as error:
        is_missing = isinstance(error, NotStored | FileNotFoundError)
        if isinstance(error, SourceError):
            reason = error.problem.removeprefix(location).strip()
        else:
            reason = f"cannot be read: {error.strerror or error}"
        raise (Missing if is_missing else Refused)(reason) from None
    if size > _LARGEST_FILE:
        raise Refused(f"is larger than {_LARGEST_FILE // MIB} MiB")
    return from_bytes(content)


def from_bytes(content: bytes) -> Stored:
    """The partials of a whole file; Refused where it inflates to too much, is not whole, or not of this format."""
    if not content.startswith(_MAGIC):
        raise Refused("is not in the format of this version")
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(memoryview(content)[len(_MAGIC) :], _LARGEST_CONTENT)
        if stream.unconsumed_tail:
            raise Refused(f"inflates to more than {_LARGEST_CONTENT // MIB} MiB")
        if not stream.eof or stream.unused_data:
            raise Refused("is not whole")
        return _STORED.decode(inflated)
    except (zlib.error, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refused(f"is damaged: {error}") from None


def to_bytes(stored: Stored) -> bytes:
    """A whole file; Unstorable where it would be larger than what is read."""
    content = _ENCODER.encode(stored)
    packed = _MAGIC + zlib.compress(content)
    if len(packed) > _LARGEST_FILE or len(content) > _LARGEST_CONTENT:
        raise Unstorable("it is too large")
    return packed


def pack_value(value: object, kind: object) -> bytes:
    """A value of a type as bytes, from which ``unpack_value`` makes the same again; Unstorable where it would not."""
    try:
        content = _ENCODER.encode(value)
        again = _ENCODER.encode(unpack_value(content, kind))
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError, msgspec.MsgspecError) as error:
        raise Unstorable(f"{type(error).__name__}: {error}") from None
    if again != content:
        raise Unstorable("it would come back as another value")
    return content


def unpack_value(content: bytes, kind: object) -> object:
    """The value of a type; ValueError where the bytes hold another one, or a number that is infinite or none."""
    try:
        value: object = _decoder(kind).decode(content)
        is_finite = not _NOT_FINITE.search(content) or not _holds_no_number(_ANYTHING.decode(content))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not is_finite:
        raise ValueError("a number that is infinite, or none")  # no report has room for it
    return value


def _holds_no_number(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_holds_no_number, value)) or any(map(_holds_no_number, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds_no_number, value))


def _decoder(kind: object) -> msgspec.msgpack.Decoder[object]:
    """The decoder of a type: msgspec dies where a thread meets a type that another one has resolved in part."""
    with _RESOLVING:
        return _make_decoder(kind)


@cache
def _make_decoder(kind: object) -> msgspec.msgpack.Decoder[object]:
    return msgspec.msgpack.Decoder(kind, ext_hook=_read_extension, dec_hook=_require_array)


def _encode_array(value: object) -> msgspec.msgpack.Ext:
    """An array as its type, its shape and its numbers; TypeError where it is no array of numbers."""
    if type(value) is not np.ndarray:
        raise TypeError(f"{type(value).__name__} cannot be stored")
    little = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(value.shape)
    if little.dtype.str not in _TYPES:
        raise TypeError(f"an array of {value.dtype} cannot be stored")
    return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode((little.dtype.str, value.shape, little.tobytes())))


def _read_extension(code: int, block: memoryview) -> npt.NDArray[np.generic]:
    """An array of its own memory; ValueError where it is none."""
    if code != _ARRAY:
        raise ValueError("an extension that perfscope does not write")
    name, shape, content = _BLOCK.decode(block)
    if name not in _TYPES or len(shape) > _MOST_AXES or min(shape, default=0) < 0:
        raise ValueError("an array of a type or a shape that perfscope does not write")
    kind = np.dtype(name)
    if math.prod(shape) * kind.itemsize != len(content):
        raise ValueError("an array is longer or shorter than its shape")
    array = np.frombuffer(bytearray(content), kind).reshape(shape)
    if kind.kind == "b" and content.translate(None, b"\0\1"):
        raise ValueError("a truth value is neither 0 nor 1")
    return array.astype(kind.newbyteorder("="), copy=False)


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
_STORED = msgspec.msgpack.Decoder(Stored)
_BLOCK = msgspec.msgpack.Decoder(tuple[str, tuple[int, ...], bytes])
_ANYTHING = msgspec.msgpack.Decoder(ext_hook=lambda _code, _block: None)


def identify(location: str) -> Identity | None:
    """The identity of a trace; None of one that is not compressed, whose end holds no checksum.

    Raises SourceError: it cannot be opened. OSError: it cannot be read.
    """
    with open_small(location) as file:
        is_compressed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TRAILER_BYTES))
        return Identity(file_name(location), size, file.read(_TRAILER_BYTES).hex()) if is_compressed else None
