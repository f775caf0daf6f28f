"""Long lists of JSON: as tables with one row an entry, and as the entries that stand out.

An entry's nested objects are further columns, ``marked_idle_us``; its nested lists of objects are tables of their own,
whose rows say of which entry they are. An entry that is shown is shown whole, and so is one that a finding points to:
the pointers of findings lead to it where it stands then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import TypeAlias, TypeGuard

from msgspec import Struct, field

from perfscope.aggregation.spread import QUANTILES, Floats, choose_rows, places_of_quantiles, to_numbers
from perfscope.constants import MANY_RANKS
from perfscope.report import Json

#: An object of JSON, and an entry as columns of a table.
Entry: TypeAlias = Mapping[str, Json]
Flat: TypeAlias = dict[str, Json]

#: What tells whose an entry is, which the rows of its nested lists carry.
_CARRIED = ("rank", "device", "group", "axis", "trace")
#: Lists of entries with one of these keys are long because a job has many ranks.
_OF_RANKS = frozenset(("rank", "ranks", "straggler"))
#: The types of a key that is a number.
_NUMBERS: tuple[set[type], ...] = ({int}, {float}, {int, float})


class EntryTable:
    """The entries of a list, or of the lists inside the entries of another one.

    Args:
        name: Where they are: ``breakdown.ranks.steps``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._entries: list[Flat] = []

    def append(self, entry: Flat) -> None:
        """Add an entry."""
        self._entries.append(entry)

    @property
    def columns(self) -> list[str]:
        """The keys of all entries."""
        return list(dict.fromkeys(key for entry in self._entries for key in entry))

    def rows(self) -> list[list[Json]]:
        """A row an entry, with a cell for each column."""
        columns = self.columns
        return [[entry.get(column) for column in columns] for entry in self._entries]


def list_tables(results: Mapping[str, Json]) -> Iterator[EntryTable]:
    """A table for each list that is long because a job has many ranks, and for each list inside of it."""
    for name, value in results.items():
        tables: dict[str, EntryTable] = {}
        _add_tables(tables, name, value, {}, is_inside=False)
        yield from tables.values()


def _add_tables(tables: dict[str, EntryTable], name: str, value: Json, carried: Flat, *, is_inside: bool) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _add_tables(tables, f"{name}.{key}", inner, carried, is_inside=is_inside)
    elif _is_list_of_entries(value) and (is_inside or is_long(value)):
        for index, entry in enumerate(value):
            own = {**carried, **dict(_flatten(entry))}
            if name not in tables:
                tables[name] = EntryTable(name)
            tables[name].append(own)
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


def is_long(value: Json) -> bool:
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


class Condensed(Struct):
    """JSON with the entries of long lists that stand out.

    Attributes:
        results: The results.
        lists: By the JSON pointer of each list that is not whole, what it was.
    """

    results: Json = None
    lists: dict[str, Json] = field(default_factory=dict)


def condense(results: Mapping[str, Json], file_of: Mapping[str, str]) -> Condensed:
    """The results with long lists of ranks as the entries that stand out, and quantiles of the others.

    Args:
        results: The results of all analyzers.
        file_of: The file that has all entries of a list, by the name of its table.
    """
    pinned = set(_pointers(results.get("findings")))
    condenser = _Condenser(pinned, file_of)
    condensed = Condensed(lists=condenser.lists)
    visited = {key: condenser.visit(value, f"/results/{key}", f"/results/{key}", key) for key, value in results.items()}
    condensed.results = {key: _move(value, condenser) if key == "findings" else value for key, value in visited.items()}
    return condensed


class _Condenser:
    """Walks through JSON; ``moved`` has the new pointer of each old one to an entry of a long list."""

    def __init__(self, pinned: set[str], file_of: Mapping[str, str]) -> None:
        self._file_of = file_of
        self.moved: dict[str, str] = {}
        self.lists: dict[str, Json] = {}
        #: The old pointers of entries that must stay, and of all above them.
        self._pinned = {pointer[:end] for pointer in pinned for end in _ends(pointer)}

    def visit(self, value: Json, old: str, new: str, name: str) -> Json:
        """A value with its long lists condensed; ``old`` and ``new`` are its pointers before and after."""
        if isinstance(value, Mapping):
            return {
                key: self.visit(inner, f"{old}/{key}", f"{new}/{key}", f"{name}.{key}") for key, inner in value.items()
            }
        if not isinstance(value, Sequence) or isinstance(value, str):
            return value
        if not (_is_list_of_entries(value) and is_long(value)):
            return [
                self.visit(inner, f"{old}/{index}", f"{new}/{index}", name) if isinstance(inner, Mapping) else inner
                for index, inner in enumerate(value)
            ]
        columns = _numeric_columns(value)
        numeric = {key: to_numbers(cells) for key, cells in columns.items()}
        chosen = choose_rows(values for values in numeric.values() if values is not None)
        stays = [index for index in range(len(value)) if f"{old}/{index}" in self._pinned]
        shown = [*chosen.rows, *(index for index in stays if index not in chosen.rows)]
        self.lists[new] = {
            "entries": len(value),
            "shown": len(shown),
            "outliers": chosen.outliers,
            "chosen": "the entries with the smallest and the largest value of each number, those that are farthest "
            "from the median, and those that findings point to",
            "file": self._file_of.get(name),
            "quantiles": {
                key: _quantiles(columns[key], values) for key, values in numeric.items() if values is not None
            },
        }
        entries = []
        for position, index in enumerate(shown):
            self.moved[f"{old}/{index}"] = f"{new}/{position}"
            entries.append(self.visit(value[index], f"{old}/{index}", f"{new}/{position}", name))
        return entries


def _ends(pointer: str) -> list[int]:
    return [*(index for index, character in enumerate(pointer) if character == "/" and index), len(pointer)]


def _pointers(value: Json) -> Iterator[str]:
    """All pointers into the results that a value has."""
    if isinstance(value, str):
        if value.startswith("/results/"):
            yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _pointers(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _pointers(inner)


def _move(value: Json, condenser: _Condenser) -> Json:
    """A value with its pointers where they lead now."""
    if isinstance(value, str):
        if not value.startswith("/results/"):
            return value
        for end in reversed(_ends(value)):
            if value[:end] in condenser.moved:
                return condenser.moved[value[:end]] + value[end:]
        return value
    if isinstance(value, Mapping):
        return {key: _move(inner, condenser) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_move(inner, condenser) for inner in value]
    return value


def _numeric_columns(entries: Sequence[Entry]) -> dict[str, list[Json]]:
    """The cells of each key that is a number in all entries that have it; None in others."""
    flat = [dict(_flatten(entry)) for entry in entries]
    keys = dict.fromkeys(key for entry in flat for key in entry if key != "rank")
    columns = {key: [entry.get(key) for entry in flat] for key in keys}
    return {key: cells for key, cells in columns.items() if {type(cell) for cell in cells} - {NoneType} in _NUMBERS}


def _quantiles(cells: Sequence[Json], values: Floats) -> dict[str, Json]:
    """The quantiles of a key, each of which is the value of an entry."""
    places = places_of_quantiles(values)
    return {name: None if place is None else cells[place] for (name, _), place in zip(QUANTILES, places, strict=True)}
