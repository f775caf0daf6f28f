"""What ``nvidia-smi --query-gpu=index,memory.used,memory.total,utilization.gpu --format=csv`` wrote during a run.

The columns are found by their headings, whatever their order, with units in the heading, in the cells, or left out.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.tables.scaling import DeviceUse

_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?i?B)?", re.IGNORECASE)
_HEADING_UNIT = re.compile(r"\[([KMG]?i?B)\]", re.IGNORECASE)
_COLUMNS = {"used": "memory.used", "total": "memory.total", "util": "utilization.gpu"}


def is_smi(path: Path) -> bool:
    """Whether a file begins as nvidia-smi's CSV does."""
    with path.open("rb") as file:
        return b"memory.used" in file.readline(1000)


def read_smi(path: Path) -> DeviceUse | None:
    """Read the samples; None where no line holds any.

    Raises:
        SourceError: The file cannot be read.
    """
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    rows = list(csv.reader(lines, skipinitialspace=True))
    if not rows:
        return None
    places = {name: _place(rows[0], heading) for name, heading in _COLUMNS.items()}
    used = [_bytes(row, rows[0], places["used"]) for row in rows[1:]]
    totals = [_bytes(row, rows[0], places["total"]) for row in rows[1:]]
    shares = [_number(row, places["util"]) for row in rows[1:]]
    most = max((value for value in used if value is not None), default=None)
    if most is None:
        return None
    known = [share for share in shares if share is not None]
    return DeviceUse(most, totals[used.index(most)], sum(known) / len(known) if known else None)


def _place(headings: list[str], wanted: str) -> int | None:
    return next((index for index, heading in enumerate(headings) if heading.strip().startswith(wanted)), None)


def _number(row: list[str], place: int | None) -> float | None:
    match = _NUMBER.match(row[place]) if place is not None and place < len(row) else None
    return float(match[1]) if match else None


def _bytes(row: list[str], headings: list[str], place: int | None) -> int | None:
    match = _NUMBER.match(row[place]) if place is not None and place < len(row) else None
    if match is None or place is None:
        return None
    stated = _HEADING_UNIT.search(headings[place])
    unit = match[2] or (stated[1] if stated else "MiB")
    return round(float(match[1]) * _UNITS.get(unit.lower(), 2**20))
