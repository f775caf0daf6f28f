r"""A log file as blocks of whole lines in constant memory, their text without colours, and what any line can hold.

Real logs hold colour codes, Latin-1 names, and progress bars that overwrite themselves with ``\r``. Log rotation leaves
holes of NUL bytes. All of it is bytes here.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from gzip import BadGzipFile
from itertools import chain
from pathlib import Path
from typing import IO, cast

from isal import igzip, igzip_lib

from perfscope.constants import NS_PER_S, S_PER_MINUTE
from perfscope.errors import SourceError
from perfscope.files import GZIP_MAGIC, LARGEST_RATIO

BLOCK = 1 << 21
#: A shorter file fills no memory.
_SMALL = 1 << 16

_ISAL_ERROR = cast("type[Exception]", igzip_lib.IsalError)  # its stub does not say that it is an exception
_ESCAPE = rb"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\](?:[^\x07\x1b\n]{0,400}+(?:\x07|\x1b\\))?+|[@-Z\\^_])"
_ESCAPES = re.compile(_ESCAPE + rb"(?:" + _ESCAPE + rb")*+")  # one match for all that stand in a row
_RETURNS_TO_ENDS = bytes.maketrans(b"\r", b"\n")
_CONTROL = bytes(set(range(1, 32)) - set(b"\t\n\r\f\b\x1b"))
_LARGEST_SHARE_OF_CONTROL_BYTES = 0.05
_ARCHIVES = ((0, b"PK\x03\x04"), (257, b"ustar"))
_LONGEST_LINE = 1 << 24
_LONGEST_LINE_READ = 1 << 14
#: No figure of a log is larger, unless it is damaged or infinite.
LARGEST = 1e30

#: The labels of torchrun, its roles, torchtitan, mpirun, Ray, kubectl, srun and pdsh, after quotation marks of a mail.
LABEL = (
    rb"(?:>\s+)*((?:\[default\d+\]:|\[rank\d+\]:|\[[a-z]{1,40}\d+\|\d+\]:|\[\d+,\d+\]<std(?:out|err)>:"
    rb"|\(\w+ pid=\d+[^)]*\) |\[pod/[\w./-]{1,100}\] |\d{1,6}: |\d{1,3}(?:\.\d{1,3}){3}: "
    rb"|[A-Za-z][\w.-]*\d[\w.-]*: (?=[\[\s{]|step|Epoch))+)"
)
_LABEL = re.compile(LABEL)
#: The clock of a progress bar, with hours or without.
CLOCK = rb"(?P<clock>(?:\d{1,5}:)?\d\d:\d\d)"
#: The month comes first in nanotron's logs.
_TIMESTAMP = re.compile(
    rb"(?:(?P<Y>\d{4})[-/](?P<M>\d\d)[-/](?P<D>\d\d)|(?P<m>\d\d)/(?P<d>\d\d)/(?P<y>\d{4}))[ T]"
    rb"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
)
#: Labels and times are looked for in so many bytes of a line.
_REACH = 200
_NUMBER = re.compile(rb"[-+]?(?:\d[\d,_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")


def read_blocks(path: Path, size: int = BLOCK) -> Iterator[bytes]:
    """Yield a file as blocks that end with a line's end, not yet plain text; fails where it is no text, or damaged."""
    try:
        with path.open("rb") as raw:
            yield from _whole_lines(_decode(path, _read(path, raw, size)))
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror or error}") from None


def _read(path: Path, raw: IO[bytes], size: int) -> Iterator[bytes]:
    chunk = raw.read(size)
    if not chunk.startswith(GZIP_MAGIC):
        while chunk:
            yield chunk
            chunk = raw.read(size)
        return
    raw.seek(0)
    with igzip.open(raw, "rb") as inflated:
        chunk, inflated_bytes = b"", 0
        while inflated_bytes <= LARGEST_RATIO * max(raw.tell(), _SMALL):
            is_first = not chunk
            try:
                chunk = inflated.read(size)
            except (EOFError, _ISAL_ERROR, BadGzipFile):
                if is_first:
                    raise SourceError(path, "is a damaged gzip file") from None
                return
            if not chunk:
                return
            inflated_bytes += len(chunk)
            yield chunk
    raise SourceError(path, f"inflates to more than {LARGEST_RATIO} times its size: it is no log")


def _decode(path: Path, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """UTF-8 of a file; UTF-16 begins with a byte order mark."""
    head = next(chunks, b"")
    if any(head.startswith(magic, offset) for offset, magic in _ARCHIVES):  # would be read as one job
        raise SourceError(path, "is an archive, not a log", hint="unpack it, and name the folder")
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        yield from (decoder.decode(chunk).encode() for chunk in chain((head,), chunks))
        return
    if is_binary(head):
        raise SourceError(path, "is a binary file, not a log", hint="name a log, or a folder of logs")
    yield head.removeprefix(codecs.BOM_UTF8)
    yield from chunks


def is_binary(head: bytes) -> bool:
    """Whether the beginning of a file is too full of control bytes to be text; holes of NUL bytes are forgiven."""
    text = head.translate(None, b"\0")
    control_bytes = len(text) - len(text.translate(None, _CONTROL))
    return control_bytes > _LARGEST_SHARE_OF_CONTROL_BYTES * len(text) or (bool(head) and not text)


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
    """Text without colour codes, each overwritten part of a line as a line of its own."""
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    if b"\r" in text or b"\0" in text:  # which may be many
        text = text.translate(_RETURNS_TO_ENDS, b"\0")
    text = _shorten_lines(text)
    if b"\x1b" in text:
        text = b"".join(_ESCAPES.split(text))  # faster than to substitute each
    return text


def _shorten_lines(text: bytes) -> bytes:
    """Text with both ends of each line over 16 KB: no record is as long, and patterns need time for the rest."""
    parts: list[bytes] = []
    begin = copied = 0
    while begin + _LONGEST_LINE_READ < len(text):
        end = text.rfind(b"\n", begin, begin + _LONGEST_LINE_READ + 1)
        if end >= 0:
            begin = end + 1
            continue
        end = text.find(b"\n", begin)
        end = len(text) if end < 0 else end
        parts += (text[copied : begin + _LONGEST_LINE_READ // 2], b"\n")
        copied = end - _LONGEST_LINE_READ // 2
        begin = end + 1
    return b"".join((*parts, text[copied:])) if parts else text


def parse_label(text: bytes, line: int) -> bytes | None:
    """What a launcher wrote in front of the line that begins at ``line``; None where it wrote nothing."""
    match = _LABEL.match(text, line, line + _REACH)
    return match[1] if match else None


def parse_timestamp_ns(text: bytes, start: int, end: int) -> int | None:
    """The first date and time of a line in nanoseconds since 1970, time zone ignored; None without one."""
    match = _TIMESTAMP.search(text, start, min(end, start + _REACH))
    if match is None:
        return None
    year, month, day = (int(match[name] or match[name.lower()]) for name in "YMD")
    hour, minute, second = (int(match[group]) for group in (7, 8, 9))
    try:
        date = datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None
    fraction = (match[10] or b"").ljust(9, b"0")
    return int((date - datetime(1970, 1, 1)).total_seconds()) * NS_PER_S + int(fraction)


def parse_clock_s(text: bytes) -> int:
    """The seconds of one of a bar's clocks."""
    seconds = 0
    for part in text.split(b":"):
        seconds = seconds * S_PER_MINUTE + int(part)
    return seconds


def parse_number(text: bytes) -> float | None:
    """The number that a text begins with, thousands separated or not; None for anything else, ``1.2.3`` included."""
    try:
        value = float(text)
    except ValueError:
        pass
    else:
        return value if abs(value) < LARGEST else None
    stripped = text.strip()
    match = _NUMBER.match(stripped)
    if match is None or stripped[match.end() : match.end() + 1] == b".":
        return None
    try:
        value = float(match[0].replace(b",", b"").replace(b"_", b""))
    except ValueError:
        return None
    return value if abs(value) < LARGEST else None


def parse_numbers(cells: Iterable[tuple[bytes, bytes]]) -> dict[bytes, float | None]:
    """The number of each name, the last one where a name occurs again."""
    return {name: parse_number(text) for name, text in dict(cells).items()}


def parse_resolution(text: bytes) -> float:
    """What the last printed digit of a number stands for: 0.1 for ``5837.9``, 1 for ``1,024``."""
    return float(10 ** -len(text.strip().partition(b".")[2]))


def only_integer(value: float, error: float) -> int | None:
    """The one positive integer within an error of a value; None where there is none, or several."""
    nearest = round(value)
    distance = abs(value - nearest)
    return nearest if nearest > 0 and distance <= error < 1 - distance else None
