"""All rows of what is aggregated, in files: CSV, or parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from types import NoneType

from perfscope.aggregation.entries import condense, list_tables
from perfscope.aggregation.tables import ALL_ROWS, find_rank_column
from perfscope.errors import PerfscopeError, SourceError
from perfscope.files import replace_file
from perfscope.report import Json, Report, Section

#: Larger integers are text in parquet.
_LARGEST = 2**63


class RowFormat(StrEnum):
    """The formats of the files."""

    CSV = "csv"
    PARQUET = "parquet"


def write_rows(report: Report, folder: Path, kind: RowFormat = RowFormat.CSV) -> Report:
    """Write all rows of a report's tables of ranks into a folder, and say in the report where they are.

    A file of an earlier analysis is replaced. Long lists of the JSON are written, too; there the entries stay that
    stand out, and ``aggregated`` says what each list was and which file has the others.

    Raises:
        SourceError: The folder cannot be made or written.
        PerfscopeError: Parquet is asked for, and pyarrow is not installed.
    """
    if kind is RowFormat.PARQUET and find_spec("pyarrow") is None:
        raise PerfscopeError("parquet needs pyarrow", hint="pip install 'perfscope[parquet]'")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(folder, f"cannot be made: {error.strerror}") from None
    sections = tuple(_write_section(section, folder, kind) for section in report.sections)
    results = report.data["results"]
    assert isinstance(results, Mapping)
    file_of = {}
    for table in list_tables(results):
        file_of[table.name] = _write(folder / f"{table.name}.{kind}", table.columns, table.rows(), kind)
    condensed = condense(results, file_of)
    aggregated = {"aggregated": condensed.lists} if condensed.lists else {}
    return replace(report, sections=sections, data={**report.data, **aggregated, "results": condensed.results})


def _write_section(section: Section, folder: Path, kind: RowFormat) -> Section:
    """Write a table, if it is one of ranks; its note names the file."""
    if find_rank_column(section) is None:
        return section
    name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")
    headings = [column.heading for column in section.columns]
    path = _write(folder / f"{name}.{kind}", headings, section.every or section.rows, kind)
    return replace(section, notes=tuple(note.replace(ALL_ROWS, f"All rows: {path}.") for note in section.notes))


def _write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Json]], kind: RowFormat) -> str:
    replace_file(path, (to_parquet if kind is RowFormat.PARQUET else _to_csv)(columns, rows))
    return str(path)


def _to_csv(columns: Sequence[str], rows: Sequence[Sequence[Json]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode("utf-8", "surrogateescape")


def to_parquet(columns: Sequence[str], rows: Sequence[Sequence[Json]]) -> bytes:
    """A table as parquet; pyarrow must be installed.

    A column is of whole numbers, numbers, truth values or text, as its cells are; where they differ it is of text.
    """
    import pyarrow  # an optional dependency
    from pyarrow import parquet

    cells = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [pyarrow.array(_alike(column)) for column in cells]
    file = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(arrays, names=list(columns)), file)
    content: bytes = file.getvalue().to_pybytes()
    return content


def _alike(cells: Sequence[Json]) -> Sequence[Json]:
    """Cells of one type: as they are, as floats, or as text as CSV has it, without what is no Unicode."""
    kinds = {type(cell) for cell in cells} - {NoneType}
    if kinds == {int, float}:
        return [None if cell is None else float(cell) for cell in cells]  # type: ignore[arg-type]
    fits = kinds != {int} or all(cell is None or -_LARGEST <= cell < _LARGEST for cell in cells)  # type: ignore[operator]
    if fits and kinds in ({int}, {float}, {bool}, set()):
        return cells
    return [None if cell is None else str(cell).encode("utf-8", "replace").decode() for cell in cells]
