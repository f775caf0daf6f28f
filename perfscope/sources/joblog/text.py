r"""A log file as blocks of whole lines in constant memory, and their text without colours and carriage returns.

Real logs hold progress bars that overwrite themselves with ``\r``, colour codes, Latin-1 names, holes of NUL bytes
that log rotation left, and now and then a line of many megabytes. All of it is bytes here; nothing is decoded.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from gzip import BadGzipFile
from io import FileIO
from pathlib import Path
from typing import IO, Any

from isal import igzip
from isal.igzip_lib import IsalError as _IsalError

from perfscope.errors import SourceError

BLOCK = 1 << 20
_FIRST = 1 << 16

IsalError: Any = _IsalError  # its stub does not say that it is an exception
_GZIP = b"\x1f\x8b"
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f\b\x1b"))
_LARGEST_SHARE_OF_CONTROL_BYTES = 0.1
_LONGEST_LINE = 16 * BLOCK
_USUAL_LINE = 1 << 12


def read_blocks(path: Path, size: int = BLOCK) -> Iterator[bytes]:
    """Yield a file as blocks that end with a line's end, not yet plain text; the last line may lack its end.

    Raises:
        SourceError: The file cannot be read, is binary, or is a damaged gzip file.
    """
    try:
        with path.open("rb") as raw:
            yield from _whole_lines(_read(path, raw, size))
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror or error}") from None


def is_uncompressed_text(path: Path) -> bool:
    """Whether a file's bytes are its text: it is neither compressed nor UTF-16."""
    with path.open("rb") as raw:
        return not raw.read(2).startswith((_GZIP, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def read_blocks_between(path: Path, begin: int, end: int, buffer: bytearray) -> Iterator[int]:
    """Read the lines that begin in a stretch of a file into a buffer, block after block, and yield how much it holds.

    A line longer than the buffer comes in parts.
    """
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as raw:
        base = _line_after(raw, begin, buffer)
        raw.seek(base)
        held = 0
        while base < end:
            got = raw.readinto(view[held:]) or 0
            held += got
            is_all = got == 0 or held == len(buffer)
            cut = _last_line(buffer, held, end - base) or (held if is_all else 0)
            if cut:
                yield cut
            elif got == 0:
                return
            base, held = base + cut, held - cut
            view[:held] = view[cut : cut + held]


def _line_after(raw: FileIO, place: int, buffer: bytearray) -> int:
    """Where the first line begins that begins at a place or after it."""
    if place == 0:
        return 0
    at = place - 1
    raw.seek(at)
    while held := raw.readinto(memoryview(buffer)[:_USUAL_LINE]):
        cut = buffer.find(b"\n", 0, held) + 1
        if cut:
            return at + cut
        at += held
    return at


def _last_line(buffer: bytearray, held: int, limit: int) -> int:
    """Where the last whole line ends of those that begin before ``limit``; 0 without one."""
    if limit < held:
        return buffer.find(b"\n", max(limit - 1, 0), held) + 1 or buffer.rfind(b"\n", 0, limit) + 1
    return buffer.rfind(b"\n", 0, held) + 1


def _read(path: Path, raw: IO[bytes], size: int) -> Iterator[bytes]:
    head = raw.read(min(size, _FIRST)) + raw.readline(_LONGEST_LINE)
    decode: Callable[[bytes], bytes] = _as_it_is
    if head.startswith(_GZIP):
        raw.seek(0)
        yield from _inflate(path, raw, size)
        return
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decode = _from_utf16(head)
    elif is_binary(head):
        raise SourceError(path, "is a binary file, not a log", hint="name a log, or a folder of logs")
    step = len(head)
    while head:
        yield decode(head)
        step = min(2 * step, size)
        head = raw.read(step) + raw.readline(_LONGEST_LINE)


def _inflate(path: Path, raw: IO[bytes], size: int) -> Iterator[bytes]:
    with igzip.open(raw, "rb") as inflated:
        first = True
        while True:
            try:
                chunk = inflated.read(size)
            except (EOFError, IsalError, BadGzipFile):
                if first:
                    raise SourceError(path, "is a damaged gzip file") from None
                return
            if first and is_binary(chunk):
                raise SourceError(path, "is a compressed binary file, not a log")
            first = False
            if not chunk:
                return
            yield chunk


def is_binary(head: bytes) -> bool:
    """Whether the beginning of a file is too full of control bytes to be text; holes of NUL bytes are forgiven."""
    text = head.replace(b"\0" * 16, b"")
    strange = len(text) - len(text.translate(None, _CONTROL))
    return strange > _LARGEST_SHARE_OF_CONTROL_BYTES * len(text) or (bool(head) and not text)


def _as_it_is(chunk: bytes) -> bytes:
    return chunk


def _from_utf16(head: bytes) -> Callable[[bytes], bytes]:
    name = "utf-16-le" if head.startswith(codecs.BOM_UTF16_LE) else "utf-16-be"
    decoder = codecs.getincrementaldecoder(name)(errors="replace")

    def decode(chunk: bytes) -> bytes:
        return decoder.decode(chunk).lstrip("\ufeff").encode()

    return decode


def _whole_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        if not rest and chunk.endswith(b"\n"):
            yield chunk
            continue
        text = rest + chunk
        end = text.rfind(b"\n") + 1
        if end == 0:
            end = text.rfind(b"\r") + 1
        if end == 0 and len(text) < _LONGEST_LINE:
            rest = text
            continue
        end = end or len(text)
        rest = text[end:]
        yield text[:end]
    if rest:
        yield rest


def to_plain_text(text: bytes) -> bytes:
    r"""Text without colour codes, each overwritten part of a line as a line of its own.

    >>> to_plain_text(b"\x1b[32mstep: 1\x1b[39m\r 10%|#|\r\n")
    b'step: 1\n 10%|#|\n\n'
    """
    if b"\x1b" in text:
        text = _ESCAPES.sub(b"", text)
    if b"\r" in text:
        text = text.replace(b"\r", b"\n")
    if b"\0" in text:
        text = text.replace(b"\0", b"")
    return text
