"""The figures of many progress bars: one search for all that are equal but for their digits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from perfscope.sources.joblog.bulk.cells import Cells
from perfscope.sources.joblog.text.alike_lines import find_each, find_in_lines
from perfscope.tables.columns import Int64

_SHORT = 1 << 12
_LOOK = 1 << 15
_FEW = 8


def find_bars(pattern: re.Pattern[bytes], text: bytes, anchor: bytes) -> Cells:
    """What the groups of a pattern match: within lines that have the anchor, and with any digits for others."""
    names = {group: name for name, group in pattern.groupindex.items()}
    if len(text) < _SHORT:
        spans = find_each(pattern, text)
    elif _FEW * text.count(anchor, 0, _LOOK) < text.count(b"\n", 0, _LOOK):
        spans = find_each(pattern, _lines_with(anchor, text))
    else:
        spans = find_in_lines(pattern, text)
    return Cells(spans, [names.get(group, "") for group in range(1, pattern.groups + 1)])


def _lines_with(anchor: bytes, text: bytes) -> bytes:
    lines = []
    offset = text.find(anchor)
    while offset >= 0:
        end = text.find(b"\n", offset)
        end = len(text) if end < 0 else end
        lines.append(text[text.rfind(b"\n", 0, offset) + 1 : end])
        offset = text.find(anchor, end)
    return b"\n".join(lines)


def find_runs(*columns: Int64) -> Iterator[tuple[int, int]]:
    """The first row, and the row behind the last, of every run of rows that are equal in all columns."""
    rows = len(columns[0])
    if rows == 1:
        yield 0, 1
    elif rows:
        is_first = np.logical_or.reduce([np.diff(column) != 0 for column in columns])
        begins = [0, *(np.flatnonzero(is_first) + 1).tolist(), rows]
        yield from pairwise(begins)
