"""Files of packed columns, as ``perfscope.hooks.pack_records`` describes and writes them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfscope.tables.columns import MaskedInt64

_MOST_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class PackedColumns:
    """The content of a file.

    Attributes:
        header: Its first line.
        rows: How many rows it has.
        numbers: Columns of numbers, by name.
        codes: Columns of other plain values, by name: the distinct values, and for each row 0 or the place of its value
            from 1.
        remainder: What fits nowhere: fields by row.
    """

    header: Mapping[str, object]
    rows: int
    numbers: dict[str, MaskedInt64]
    codes: dict[str, tuple[Sequence[object], npt.NDArray[np.uint8]]]
    remainder: Mapping[str, Mapping[str, Any]]


def decode_columns(content: bytes, schema: str) -> PackedColumns:
    """The columns of a packed file.

    Raises:
        ValueError, KeyError, TypeError, zlib.error: It is damaged, or of another schema.
    """
    line, _, packed = content.partition(b"\n")
    header = json.loads(line)
    if header["schema"] != schema:
        raise ValueError("unknown schema")
    rows, body, at = int(header["rows"]), zlib.decompress(packed), 0
    numbers: dict[str, MaskedInt64] = {}
    for column in header["columns"]:
        width = int(column.get("bytes", _MOST_BYTES))
        planes = np.frombuffer(body, np.uint8, rows * width, at).reshape(width, rows)
        values = np.ascontiguousarray(planes.T).view(f"<i{width}").reshape(rows).astype(np.int64)
        at += rows * width
        absent = np.zeros(rows, np.bool_)
        if column["absent"]:
            absent = np.frombuffer(body, np.uint8, rows, at) != 0
            at += rows
        numbers[column["name"]] = np.ma.MaskedArray(np.cumsum(values) if column["delta"] else values, mask=absent)
    codes = {}
    for code in header["codes"]:
        codes[code["name"]] = (code["values"], np.frombuffer(body, np.uint8, rows, at))
        at += rows
    return PackedColumns(header, rows, numbers, codes, json.loads(body[at:]))
