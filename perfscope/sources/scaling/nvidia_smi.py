"""Reads the CSV of ``nvidia-smi --query-gpu=index,memory.used,memory.total,utilization.gpu --format=csv``.

Columns are identified by their headings, in any order, with units in the heading, in the cells, or omitted.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from perfscope.constants import GIB, KIB, MIB
from perfscope.errors import SourceError
from perfscope.tables.scaling import DeviceUse

_UNITS = {"b": 1, "kib": KIB, "mib": MIB, "gib": GIB}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?i?B)?", re.IGNORECASE)
_HEADING_UNIT = re.compile(r"\[([KMG]?i?B)\]", re.IGNORECASE)
_COLUMNS = {"used": "memory.used", "total": "memory.total", "util": "utilization.gpu"}


def is_smi(path: Path) -> bool:
    """Whether a file begins as nvidia-smi's CSV does."""
    with path.open("rb") as file:
        return b"memory.used" in file.readline(1000)


def read_smi(path: Path) -> DeviceUse | None:
    """Read the samples; None where no line has memory in use.

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
    headings, *samples = rows
    columns = {name: _find_column(headings, heading) for name, heading in _COLUMNS.items()}
    used = [_parse_bytes(row, headings, columns["used"]) for row in samples]
    totals = [_parse_bytes(row, headings, columns["total"]) for row in samples]
    peak = max((memory for memory in used if memory is not None), default=None)
    if peak is None:
        return None
    utilisation = [percent for row in samples if (percent := _parse_number(row, columns["util"])) is not None]
    mean = sum(utilisation) / len(utilisation) if utilisation else None
    return DeviceUse(peak, totals[used.index(peak)], mean)


def _find_column(headings: list[str], name: str) -> int | None:
    return next((index for index, heading in enumerate(headings) if heading.strip().startswith(name)), None)


def _match_cell(row: list[str], column: int | None) -> re.Match[str] | None:
    return _NUMBER.match(row[column]) if column is not None and column < len(row) else None


def _parse_number(row: list[str], column: int | None) -> float | None:
    match = _match_cell(row, column)
    return float(match[1]) if match else None


def _parse_bytes(row: list[str], headings: list[str], column: int | None) -> int | None:
    match = _match_cell(row, column)
    if match is None or column is None:
        return None
    heading_unit = _HEADING_UNIT.search(headings[column])
    unit = match[2] or (heading_unit[1] if heading_unit else "MiB")
    return round(float(match[1]) * _UNITS.get(unit.lower(), MIB))
