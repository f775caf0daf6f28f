"""All rows of what is aggregated, in files of CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, TypeGuard

from perfscope.aggregation.tables import ALL_ROWS, find_rank_column
from perfscope.constants import MANY_RANKS
from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.report import Json, Report, Section

#: An object of JSON, and an entry as columns of a table.
Entry: TypeAlias = Mapping[str, Json]
Flat: TypeAlias = dict[str, Json]
#: What tells whose an entry is, which the rows of its nested lists carry.
_CARRIED = ("rank", "device", "group", "axis", "trace")
#: Lists of entries with one of these keys are long because a job has many ranks.
_OF_RANKS = frozenset(("rank", "ranks", "straggler"))


def write_rows(report: Report, folder: Path) -> Report:
    """Write all rows of a report's tables of ranks into a folder, and say in the report where they are.

    A file of an earlier analysis is replaced. Long lists of the JSON are written as tables, too.

    Raises:
        SourceError: The folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(folder, f"cannot be made: {error.strerror}") from None
    sections = tuple(_write_section(section, folder) for section in report.sections)
    results = report.data["results"]
    assert isinstance(results, Mapping)
    for name, entries in list_tables(results):
        columns = list(dict.fromkeys(key for entry in entries for key in entry))
        rows = [[entry.get(column) for column in columns] for entry in entries]
        _write(folder / f"{name}.csv", columns, rows)
    return replace(report, sections=sections)


def _write_section(section: Section, folder: Path) -> Section:
    """Write a table, if it is one of ranks; its note names the file."""
    if find_rank_column(section) is None:
        return section
    name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")
    headings = [column.heading for column in section.columns]
    path = _write(folder / f"{name}.csv", headings, section.every or section.rows)
    return replace(section, notes=tuple(note.replace(ALL_ROWS, f"All rows: {path}.") for note in section.notes))


def _write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Json]]) -> str:
    replace_file(path, _to_csv(columns, rows))
    return str(path)


def _to_csv(columns: Sequence[str], rows: Sequence[Sequence[Json]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode("utf-8", "surrogateescape")


def list_tables(results: Mapping[str, Json]) -> Iterator[tuple[str, list[Flat]]]:
    """A table for each list that is long because a job has many ranks, and for each list inside of it.

    Its name is where the list is, ``breakdown.ranks.steps``. An entry's nested objects are further columns,
    ``marked_idle_us``; its nested lists of objects are tables of their own, whose rows say of which entry they are.
    """
    for name, value in results.items():
        tables: dict[str, list[Flat]] = {}
        _add_tables(tables, name, value, {}, is_inside=False)
        yield from tables.items()


def _add_tables(tables: dict[str, list[Flat]], name: str, value: Json, carried: Flat, *, is_inside: bool) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _add_tables(tables, f"{name}.{key}", inner, carried, is_inside=is_inside)
    elif _is_list_of_entries(value) and (is_inside or _is_long(value)):
        for index, entry in enumerate(value):
            own = {**carried, **dict(_flatten(entry))}
            tables.setdefault(name, []).append(own)
            of_entry = {f"{name.rpartition('.')[2]}_index": index, **carried}
            of_entry |= {key: entry[key] for key in _CARRIED if key in entry}
            for key, inner in entry.items():
                _add_tables(tables, f"{name}.{key}", inner, of_entry, is_inside=True)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            if isinstance(inner, Mapping):
                _add_tables(tables, name, inner, carried, is_inside=False)


def _is_list_of_entries(value: Json) -> TypeGuard[Sequence[Entry]]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    return is_list and all(isinstance(entry, Mapping) for entry in value)  # type: ignore[union-attr]


def _is_long(value: Json) -> bool:
    """Whether a list has an entry for each of more than 512 ranks, or for groups of them."""
    return _is_list_of_entries(value) and len(value) > MANY_RANKS and bool(_OF_RANKS & value[0].keys())


def _flatten(entry: Entry, prefix: str = "") -> Iterator[tuple[str, Json]]:
    for key, value in entry.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}_")
        elif not isinstance(value, Sequence) or isinstance(value, str):
            yield f"{prefix}{key}", value
        elif not _is_list_of_entries(value):
            yield f"{prefix}{key}", json.dumps(value)
