"""Files of packed columns, as ``perfscope.hooks.pack_records`` describes and writes them.

A file is inflated as a whole; its numbers are decoded where and when they are asked for: columns of a week that nobody
asks for cost nothing, and those of all its files are decoded into one array.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from perfscope.tables.columns import Bool, Int64

#: Its stub does not say that it is an exception.
_INFLATE_ERROR = cast("type[Exception]", isal_zlib.error)
_MOST_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class PackedNumbers:
    """A column of numbers in the inflated content of a file.

    Attributes:
        body: The content.
        rows: How many numbers there are.
        at: Where their bytes begin.
        width: How many bytes each has.
        is_delta: Whether each is the difference from the one before it.
        absent_at: Where the bytes begin that are 1 where there is none; None where all are there.
    """

    body: bytes
    rows: int
    at: int
    width: int
    is_delta: bool
    absent_at: int | None

    def write(self, values: Int64, absent: Bool) -> None:
        """Decode the numbers into two arrays of as many rows."""
        planes = np.frombuffer(self.body, np.uint8, self.rows * self.width, self.at).reshape(self.width, self.rows)
        values[:] = np.ascontiguousarray(planes.T).view(f"<i{self.width}").reshape(self.rows)
        if self.is_delta:
            np.cumsum(values, out=values)
        if self.absent_at is not None:
            absent[:] = np.frombuffer(self.body, np.uint8, self.rows, self.absent_at) != 0


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
    numbers: dict[str, PackedNumbers]
    codes: dict[str, tuple[Sequence[object], npt.NDArray[np.uint8]]]
    remainder: Mapping[str, Mapping[str, Any]]


def decode_columns(content: bytes, schema: str) -> PackedColumns:
    """The columns of a packed file.

    Raises:
        ValueError, KeyError, TypeError: It is damaged, or of another schema.
    """
    line, _, packed = content.partition(b"\n")
    header = json.loads(line)
    if header["schema"] != schema:
        raise ValueError("unknown schema")
    try:
        body = isal_zlib.decompress(packed)
    except _INFLATE_ERROR as error:
        raise ValueError(str(error)) from None
    rows, at = int(header["rows"]), 0
    numbers: dict[str, PackedNumbers] = {}
    for column in header["columns"]:
        width = int(column.get("bytes", _MOST_BYTES))
        absent_at = at + rows * width if column["absent"] else None
        numbers[column["name"]] = PackedNumbers(body, rows, at, width, bool(column["delta"]), absent_at)
        at += rows * (width + bool(column["absent"]))
    codes = {}
    for code in header["codes"]:
        codes[code["name"]] = (code["values"], np.frombuffer(body, np.uint8, rows, at))
        at += rows
    return PackedColumns(header, rows, numbers, codes, json.loads(body[at:]))
