"""Parsers of what a line of any log can hold: the launcher's label at its beginning, a date, numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache

from perfscope.constants import NS_PER_S, S_PER_MINUTE

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
_LONGEST_LABEL = 120
_TIMESTAMP = re.compile(rb"(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_TIMESTAMP_REACH = 200
_NUMBER = re.compile(rb"[-+]?(?:\d[\d,_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")


def parse_label(text: bytes, line: int) -> bytes | None:
    """What a launcher wrote in front of the line that begins at ``line``; None where it wrote nothing."""
    match = _LABEL.match(text, line, line + _LONGEST_LABEL)
    return match[1] if match else None


def split_at_labels(text: bytes) -> tuple[list[bytes], list[bytes | None]]:
    """The lines of a text without their labels, and these; whole lines without any where not all have one of a kind."""
    lines, label = text.count(b"\n"), parse_label(text, 0)
    if label is not None and text.startswith(label):
        parts = _labels_like(re.sub(rb"\d+", b"0", label)).split(b"\n" + text[:-1])
        labels: list[bytes | None] = parts[1::2]
        if not parts[0] and len(labels) == lines:
            return parts[2::2], labels
    return text.split(b"\n")[:-1], [None] * lines


@lru_cache(maxsize=64)
def _labels_like(label: bytes) -> re.Pattern[bytes]:
    """Finds labels with other numbers at the beginning of lines."""
    return re.compile(rb"\n(" + re.escape(label).replace(b"0", rb"\d+") + rb")")


def parse_timestamp_ns(text: bytes, start: int, end: int) -> int | None:
    """The first date and time of a line in nanoseconds since 1970, time zone ignored; None without one."""
    match = _TIMESTAMP.search(text, start, min(end, start + _TIMESTAMP_REACH))
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    try:
        date = datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None
    fraction = (match[7] or b"").ljust(9, b"0")
    return int((date - datetime(1970, 1, 1)).total_seconds()) * NS_PER_S + int(fraction)


def parse_clock_s(text: bytes) -> int:
    """The seconds of one of a bar's clocks."""
    seconds = 0
    for part in text.split(b":"):
        seconds = seconds * S_PER_MINUTE + int(part)
    return seconds


def parse_number(text: bytes) -> float | None:
    """The number that a text begins with, thousands separated or not; None for anything else, ``1.2.3`` included.

    >>> parse_number(b" 5,498 "), parse_number(b"5.12e+02,"), parse_number(b"1.2.3"), parse_number(b"nan")
    (5498.0, 512.0, None, None)
    """
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
    """The number of each name, the last one where a name occurs again.

    >>> parse_numbers([(b"loss", b"2.5"), (b"lr", b"1e-5"), (b"loss", b"2.25")])
    {b'loss': 2.25, b'lr': 1e-05}
    """
    return {name: parse_number(text) for name, text in dict(cells).items()}


def parse_resolution(text: bytes) -> float:
    """What the last printed digit of a number stands for.

    >>> parse_resolution(b" 5837.9 "), parse_resolution(b"1,024"), parse_resolution(b"0.25")
    (0.1, 1.0, 0.01)
    """
    return float(10 ** -len(text.strip().partition(b".")[2]))
