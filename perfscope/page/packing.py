"""Packs a timeline for the page: numbers of few bytes, as text."""

from __future__ import annotations

import base64

import numpy as np

from perfscope.tables.columns import Int64

_SEVEN_BITS = 7
_MOST_BYTES = 9


def pack(values: Int64) -> str:
    """Whole numbers from 0 up, each in as many bytes of seven bits as it needs, as base64.

    >>> pack(np.array([1, 300]))
    'AawC'

    Raises:
        ValueError: A number is negative.
    """
    if len(values) and int(values.min()) < 0:
        raise ValueError("only numbers from 0 up are packed")
    lengths = np.ones(len(values), np.int64)
    for count in range(1, _MOST_BYTES):
        lengths += values >= 1 << (_SEVEN_BITS * count)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    packed = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for count in range(_MOST_BYTES):
        rows = lengths > count
        if not rows.any():
            break
        byte = (values[rows] >> (_SEVEN_BITS * count)) & 0x7F
        byte |= np.where(lengths[rows] > count + 1, 0x80, 0)
        packed[starts[rows] + count] = byte
    return base64.b64encode(packed.tobytes()).decode()
