"""The file of partials itself: written whole, read within fixed limits of time and memory."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, cast

import msgspec
from isal import isal_zlib
from msgspec import Struct

from perfscope.constants import KIB, MIB
from perfscope.errors import SourceError
from perfscope.sources.partials.header import SCHEMA, Header, Section, sha256
from perfscope.sources.partials.values import Unstorable, pack_value, unpack_value
from perfscope.sources.stores.reading import NotStored
from perfscope.sources.traces.files import open_small

_MAGIC = b"PSPART1\n"
_LENGTH_BYTES = 4
_DIGEST_BYTES = 32
_LARGEST_FILE = 8 * MIB
_LARGEST_HEADER = 256 * KIB
_LARGEST_SECTION = 8 * MIB
_LARGEST_IN_ALL = 32 * MIB
_MOST_SECTIONS = 64
_LEVEL = 6
_SMALL_SECTION = 32 * KIB
#: What deflating saves less of stands as it is.
_LEAST_SAVED = 192
#: What inflates twice as fast as the standard library.
_INFLATE_ERROR = cast("type[Exception]", isal_zlib.error)

_HEADER = msgspec.json.Decoder(Header)
_TEXT = msgspec.msgpack.Encoder()
_MARK = "\0trace "


class Refused(Exception):
    """A file of partials that is not taken; its text says why, in words that follow the file's name."""


class Missing(Refused):
    """There is no such file."""


class Packed(NamedTuple):
    """A section that is ready to be written.

    Attributes:
        section: Its entry in the header.
        content: Its bytes.
    """

    section: Section
    content: bytes


class StoredPartials(Struct, frozen=True):
    """A file of partials that is whole.

    Attributes:
        header: Its header.
        sections: Its sections by name, as they are in the file, and the bytes that each inflates to.
        size: Its bytes.
    """

    header: Header
    sections: dict[str, tuple[bytes, int]]
    size: int

    def unpack(self, name: str, kind: object, paths: Sequence[str]) -> object:
        """The value of one section.

        Args:
            name: The section.
            kind: The type of its value.
            paths: Where the traces are now, in the order of the header.

        Raises:
            Refused: There is no such section, or it holds something else.
        """
        if name not in self.sections:
            raise Refused(f"holds nothing of {name}")
        try:
            content = _inflate(*self.sections[name])
            if _MARK.encode() in content:
                for number, path in enumerate(paths):
                    content = content.replace(_mark(number), _TEXT.encode(path))
            return unpack_value(content, kind)
        except (ValueError, _INFLATE_ERROR) as error:
            raise Refused(f"is damaged: {name or 'its trace'}: {error}") from None


def pack_section(name: str, value: object, kind: object, paths: Sequence[str]) -> Packed:
    """A value as a section; the paths of the traces in it are those at the time of reading.

    Raises:
        Unstorable: It would not come back as it is.
    """
    content = pack_value(value, kind)
    for number, path in enumerate(paths):
        content = content.replace(_TEXT.encode(path), _mark(number))
    if any(path.encode() in content for path in paths):
        raise Unstorable("it holds a trace's path in a sentence")
    if len(content) > _LARGEST_SECTION:
        raise Unstorable("it is too large")
    packed = _deflate(content)
    return Packed(Section(name, len(packed), len(content)), packed)


def _deflate(content: bytes) -> bytes:
    """Small sections with the codes that are fixed: to read the codes of their own would take longer than the text."""
    strategy = zlib.Z_FIXED if len(content) < _SMALL_SECTION else zlib.Z_DEFAULT_STRATEGY
    stream = zlib.compressobj(_LEVEL, strategy=strategy)
    packed = stream.compress(content) + stream.flush()
    return packed if len(packed) + _LEAST_SAVED <= len(content) else content


def to_bytes(header: Header, sections: Sequence[Packed]) -> bytes:
    """A whole file.

    Raises:
        Unstorable: It would be larger than what is read.
    """
    entries = msgspec.structs.replace(header, sections=tuple(packed.section for packed in sections))
    head = msgspec.json.encode(entries)
    body = b"".join(packed.content for packed in sections)
    content = _MAGIC + len(head).to_bytes(_LENGTH_BYTES, "little") + head + body
    unpacked = sum(packed.section.unpacked for packed in sections)
    if len(content) > _LARGEST_FILE - _DIGEST_BYTES or len(head) > _LARGEST_HEADER or unpacked > _LARGEST_IN_ALL:
        raise Unstorable("it is too large")
    return content + sha256(content).digest()


def read_partials(location: str) -> StoredPartials:
    """Read a file of partials; nothing in it is inflated yet.

    Raises:
        Missing: There is none.
        Refused: It cannot be read, is too large, not whole, or not of this schema.
    """
    try:
        with open_small(location) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            # No more than there is: memory for the largest file takes longer than to read a small one.
            content = file.read(min(size, _LARGEST_FILE))
    except (SourceError, OSError) as error:
        is_missing = isinstance(error, (NotStored, FileNotFoundError))
        raise (Missing if is_missing else Refused)(_describe(error, location)) from None
    if size > _LARGEST_FILE:
        raise Refused(f"is larger than {_LARGEST_FILE // MIB} MiB")
    return from_bytes(content)


def _describe(error: SourceError | OSError, location: str) -> str:
    if isinstance(error, SourceError):
        return error.problem.removeprefix(location).strip()
    return f"cannot be read: {error.strerror or error}"


def from_bytes(content: bytes) -> StoredPartials:
    """The partials of a whole file.

    Raises:
        Refused: It is not whole, or not of this schema.
    """
    begin = len(_MAGIC) + _LENGTH_BYTES
    end = len(content) - _DIGEST_BYTES
    if not content.startswith(_MAGIC):
        raise Refused("is not of the schema " + SCHEMA)
    if end < begin or sha256(memoryview(content)[:end]).digest() != content[end:]:
        raise Refused("is not whole")
    length = int.from_bytes(content[len(_MAGIC) : begin], "little")
    if length > min(_LARGEST_HEADER, end - begin):
        raise Refused("has a header that is too long")
    try:
        header = _HEADER.decode(content[begin : begin + length])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refused(f"has a damaged header: {error}") from None
    if header.schema != SCHEMA:
        raise Refused("is not of the schema " + SCHEMA)
    return StoredPartials(header, _cut(content[begin + length : end], header.sections), len(content))


def _cut(body: bytes, sections: Sequence[Section]) -> dict[str, tuple[bytes, int]]:
    """The sections of the body.

    Raises:
        Refused: Their sizes cannot be true.
    """
    cut, begin, unpacked = {}, 0, 0
    fits = len(sections) <= _MOST_SECTIONS
    for section in sections:
        fits = fits and 0 <= section.packed <= _LARGEST_SECTION and 0 <= section.unpacked <= _LARGEST_SECTION
        cut[section.name] = body[begin : begin + section.packed], section.unpacked
        begin += section.packed
        unpacked += section.unpacked
    if not fits or len(cut) != len(sections) or unpacked > _LARGEST_IN_ALL:
        raise Refused("has sections that are too large, too many or twice there")
    if begin != len(body):
        raise Refused("has sections of other sizes than it says")
    return cut


def _inflate(packed: bytes, size: int) -> bytes:
    """Inflate no more than what is stated; what is of that size already stands as it is.

    Raises:
        ValueError: It is more, or less.
        isal.isal_zlib.error: It cannot be inflated.
    """
    if len(packed) == size:
        return packed
    stream = isal_zlib.decompressobj()
    content: bytes = stream.decompress(packed, size + 1)
    if len(content) != size or not stream.eof or stream.unused_data:
        raise ValueError("it does not inflate to the size that is stated")
    return content


@cache
def _mark(number: int) -> bytes:
    """What stands for the path of a trace in a section: no path holds a zero."""
    return _TEXT.encode(f"{_MARK}{number}\0")
