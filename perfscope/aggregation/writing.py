"""All rows of what is aggregated, in files: CSV, or parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.aggregation.entries import condense, list_tables
from perfscope.aggregation.tables import ALL_ROWS, find_rank_column
from perfscope.errors import PerfscopeError, SourceError
from perfscope.files import replace_file
from perfscope.report import Json, Report, Section

if TYPE_CHECKING:
    from perfscope.aggregation.parquet import Rows

#: Loaded by name where parquet is written: few analyses write any.
_PARQUET = "perfscope.aggregation.parquet"
#: So many rows are written at once.
_AT_ONCE = 512


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
        file_of[table.name] = _write(folder / f"{table.name}.{kind}", table.columns, table.rows, kind)
    condensed = condense(results, file_of)
    aggregated = {"aggregated": condensed.lists} if condensed.lists else {}
    return replace(report, sections=sections, data={**report.data, **aggregated, "results": condensed.results})


def _write_section(section: Section, folder: Path, kind: RowFormat) -> Section:
    """Write a table, if it is one of ranks; its note names the file."""
    if find_rank_column(section) is None:
        return section
    name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")
    headings = [column.heading for column in section.columns]
    path = _write(folder / f"{name}.{kind}", headings, lambda: section.every or section.rows, kind)
    return replace(section, notes=tuple(note.replace(ALL_ROWS, f"All rows: {path}.") for note in section.notes))


def _write(path: Path, columns: Sequence[str], rows: Rows, kind: RowFormat) -> str:
    content = (
        import_module(_PARQUET).to_parquet(columns, rows) if kind is RowFormat.PARQUET else _to_csv(columns, rows())
    )
    replace_file(path, content)
    return str(path)


def _to_csv(columns: Sequence[str], rows: Iterable[Sequence[Json]]) -> Iterator[bytes]:
    """A table as CSV, some rows at a time."""
    every = chain([columns], (["" if cell is None else cell for cell in row] for row in rows))
    while some := list(islice(every, _AT_ONCE)):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(some)
        yield text.getvalue().encode("utf-8", "surrogateescape")
