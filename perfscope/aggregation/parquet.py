"""Rows as parquet, some at a time: what is in memory does not grow with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from typing import TypeAlias

from perfscope.report import Json

#: A table of which the rows can be gone through as often as wanted.
Rows: TypeAlias = Callable[[], Iterable[Sequence[Json]]]

#: So many rows are a row group; what a reader needs of each group is little beside them.
_IN_A_GROUP = 2048
_LARGEST = 2**63
#: What holds the values of both, by their names for pyarrow.
_WIDER = {frozenset(("int64", "float64")): "float64"}
_TEXT, _NOTHING = "string", "null"


def to_parquet(columns: Sequence[str], rows: Rows) -> Iterator[bytes]:
    """A table as the pieces of a file of parquet; pyarrow must be installed.

    A column is of whole numbers, numbers, truth values or text, as its cells are; where they differ it is of text.
    """
    pyarrow = import_module("pyarrow")
    kinds = _kinds(len(columns), rows())
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in zip(columns, kinds, strict=True)])
    file = _Pieces()
    every = iter(rows())
    with import_module("pyarrow.parquet").ParquetWriter(file, schema) as writer:
        while some := list(islice(every, _IN_A_GROUP)):
            cells = [
                [_as_text(row[column]) for row in some] if kind == _TEXT else [row[column] for row in some]
                for column, kind in enumerate(kinds)
            ]
            arrays = [pyarrow.array(column, field.type) for column, field in zip(cells, schema, strict=True)]
            writer.write_table(pyarrow.table(arrays, schema=schema))
            yield from file.take()
    yield from file.take()


class _Pieces:
    """A file of which what was written is taken away."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def write(self, content: bytes | memoryview) -> int:
        piece = bytes(content)
        self._pieces.append(piece)
        self._size += len(piece)
        return len(piece)

    def take(self) -> list[bytes]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """What was written is still to be taken."""


def _kinds(count: int, rows: Iterable[Sequence[Json]]) -> list[str]:
    """The type of each column."""
    kinds = [_NOTHING] * count
    for row in rows:
        for column, cell in enumerate(row):
            kind = _kind_of(cell)
            if kind not in (kinds[column], _NOTHING):
                before = kinds[column]
                kinds[column] = kind if before == _NOTHING else _WIDER.get(frozenset((before, kind)), _TEXT)
    return kinds


def _kind_of(cell: Json) -> str:
    if cell is None:
        return _NOTHING
    if isinstance(cell, bool):
        return "bool_"
    if isinstance(cell, int):
        return "int64" if -_LARGEST <= cell < _LARGEST else _TEXT
    return "float64" if isinstance(cell, float) else _TEXT


def _as_text(cell: Json) -> str | None:
    """A cell as CSV has it; what is no text of Unicode, as the name of a file may be, is replaced."""
    return None if cell is None else str(cell).encode("utf-8", "replace").decode()
